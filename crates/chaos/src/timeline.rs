//! A run as a picture: one HTML file without anything from elsewhere, for a person who wants to see what happened.
//!
//! On top the verdict and the counts; below, the run in strips of some seconds. In a strip, time goes from left to right: a
//! row for each node and database with the faults that hit it, a row for each client's worker with its grants. Strips in which
//! something was found, refused or lost are open, the others can be opened.
//!
//! Pure: history and verdict come in, text goes out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::check::Finding;
use crate::client::WORKERS;
use crate::fault::{Database, Kind, Target};
use crate::history::{Fault, History, Micros, ORDERS, Outcome, WriteKind};
use crate::life::{Hold, Life, lives};
use crate::plan::{CLIENTS, NODES};
use crate::verdict::Verdict;

/// How much of the run is in one strip.
const STRIP: Micros = 10_000_000;

/// How many strips are open at first, at most: a long run is for leafing through.
const OPEN_MAX: usize = 6;

/// How many findings are listed.
const LISTED_MAX: usize = 60;

const WIDTH: f64 = 1_120.0;
const LABEL: f64 = 92.0;
const ROW: f64 = 15.0;
const HEAD: f64 = 20.0;

/// One colour per resource, told apart on light and dark ground, also by those who see no red or green.
const COLOURS: [&str; ORDERS.len()] = ["#3b7dd8", "#8a63d2", "#1f9e89", "#c08a00", "#b5547a", "#5f7a8a"];

const STYLE: &str = "\
:root{color-scheme:light dark;--ground:#fff;--text:#1c2126;--soft:#5d6772;--line:#d9dee3;--row:#f4f6f8;--fault:#e9a13b;\
--forget:#d0482f;--bad:#c62828;--good:#1b7f3b}\
@media(prefers-color-scheme:dark){:root{--ground:#14181c;--text:#e6e9ec;--soft:#9aa5b0;--line:#333b43;--row:#1b2126;\
--fault:#b97a1f;--forget:#e0634c;--bad:#ff6b6b;--good:#5ac77d}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:76rem;padding:1rem;font:15px/1.5 system-ui,sans-serif;\
background:var(--ground);color:var(--text)}h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}\
p{margin:.4rem 0;max-width:48rem}.good{color:var(--good)}.bad{color:var(--bad)}.soft{color:var(--soft)}\
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.5rem;margin:1rem 0}\
.facts div{border:1px solid var(--line);border-radius:6px;padding:.4rem .6rem}.facts b{display:block;font-size:1.25rem}\
ul.faults{columns:16rem;padding-left:0;list-style:none;margin:.3rem 0}ul.faults li{break-inside:avoid;padding-left:3.1rem;\
position:relative}\
ul.faults b{position:absolute;left:0;width:2.6rem;text-align:right;font-variant-numeric:tabular-nums}\
ol.findings{padding-left:1.4rem}ol.findings li{overflow-wrap:anywhere;margin:.2rem 0}\
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1.1rem;font-size:.85rem;margin:.5rem 0}.legend svg{vertical-align:-2px}\
details{border-top:1px solid var(--line)}summary{cursor:pointer;padding:.45rem 0;font-variant-numeric:tabular-nums}\
.strip{overflow-x:auto;padding-bottom:.5rem}.strip svg{display:block;min-width:52rem;width:100%;height:auto}\
svg text{font:10.5px system-ui,sans-serif;fill:var(--soft)}svg .name{fill:var(--text)}svg .ground{fill:var(--row)}svg .tick{stroke:var(--line)}\
svg .fault{fill:var(--fault);opacity:.8}svg .forget{fill:var(--forget);opacity:.85}svg .frozen{fill:var(--fault);opacity:.28}\
svg .valid{opacity:.16}svg .overdue{fill:none;stroke:var(--bad);stroke-dasharray:3 2}svg .refused{stroke:var(--bad);stroke-width:2;fill:none}svg .lost{fill:var(--bad)}\
svg .unknown{fill:none;stroke:var(--soft);stroke-width:1.5}svg .write{stroke:var(--text);stroke-width:1}\
svg .found{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:3 2}svg .excused{stroke:var(--soft);stroke-dasharray:2 3}";

/// The whole page.
#[must_use]
pub fn page(history: &History, verdict: &Verdict) -> String {
    let lives = lives(history);
    let mut page = String::new();
    let seed = history.setup.seed;
    let _ = write!(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width,initial-scale=1'>\
         <title>Chaos, seed {seed}</title><style>{STYLE}</style>"
    );
    head(&mut page, history, verdict);
    findings(&mut page, verdict);
    legend(&mut page);
    strips(&mut page, history, verdict, &lives);
    page.push_str("</html>\n");
    page
}

fn head(page: &mut String, history: &History, verdict: &Verdict) {
    let violations = verdict.violations().count();
    let (class, word) = if verdict.is_good() { ("good", "good") } else { ("bad", "bad") };
    let excused = verdict.findings.len() - violations;
    let fence = match (history.setup.fenced, history.setup.guarded) {
        (true, false) => "",
        (true, true) => ", <b>with the crash-recovery guard</b>",
        (false, _) => ", <b>without the fence</b>",
    };
    let _ = write!(
        page,
        "<h1>Chaos, seed {}: <span class={class}>{word}</span></h1><p class=soft>{} s{fence}; five Redis servers, Postgres, \
         MariaDB and SQLite, {CLIENTS} client processes with {WORKERS} workers each; a lock lives {} ms.</p>\
         <p>{violations} violations. {excused} findings excused, because what the promise needs was not there.</p>",
        history.setup.seed,
        history.setup.seconds,
        history.setup.ttl / 1_000
    );
    let counts = &verdict.counts;
    page.push_str("<div class=facts>");
    for (number, what) in [
        (history.faults.iter().filter(|fault| fault.happened).count(), "faults"),
        (counts.granted, "locks granted"),
        (counts.asked - counts.granted, "not granted"),
        (counts.rows, "writes kept"),
        (counts.stale, "refused as stale"),
        (counts.unknown, "answers lost"),
        (counts.failed, "writes failed"),
        (counts.lost, "losses told"),
        (counts.processes, "client processes"),
    ] {
        let _ = write!(page, "<div><b>{number}</b>{what}</div>");
    }
    page.push_str("</div><h2>Faults</h2><ul class=faults>");
    for (kind, planned, happened) in &verdict.faults {
        let never = match happened {
            0 => " <span class=bad>never happened</span>".to_owned(),
            _ if happened < planned => format!(" <span class=soft>of {planned} planned</span>"),
            _ => String::new(),
        };
        let _ = write!(page, "<li><b>{happened}</b>{}{never}</li>", escape(&kind.to_string()));
    }
    page.push_str("</ul>");
}

fn findings(page: &mut String, verdict: &Verdict) {
    for trouble in &verdict.trouble {
        let _ = write!(page, "<p class=bad>The harness: {}</p>", escape(trouble));
    }
    if verdict.findings.is_empty() {
        return;
    }
    page.push_str("<h2>Findings</h2><ol class=findings>");
    let (violations, excused): (Vec<&Finding>, Vec<&Finding>) =
        verdict.findings.iter().partition(|finding| finding.is_violation());
    let all = violations.len() + excused.len();
    for finding in violations.into_iter().chain(excused).take(LISTED_MAX) {
        let text = escape(&finding.to_string());
        let _ = match &finding.excuse {
            None => write!(page, "<li class=bad>{text}</li>"),
            Some(excuse) => write!(page, "<li>{text} <span class=soft>excused: {}</span></li>", escape(excuse)),
        };
    }
    page.push_str("</ol>");
    if LISTED_MAX < all {
        let _ = write!(page, "<p class=soft>and {} more, in history.json and the strips below</p>", all - LISTED_MAX);
    }
}

fn legend(page: &mut String) {
    page.push_str("<h2>What happened when</h2><div class=legend>");
    for (order, colour) in ORDERS.iter().zip(COLOURS) {
        let _ = write!(
            page,
            "<span><svg width=14 height=11><rect width=14 height=11 fill='{colour}'/></svg> {}</span>",
            order.resource
        );
    }
    for (drawing, what) in [
        ("<rect width=14 height=11 fill='#3b7dd8'/>", "held"),
        ("<rect class=valid width=14 height=11 fill='#3b7dd8'/>", "given back before its end"),
        ("<rect class=overdue x=1 y=1 width=12 height=9 />", "at work without a lock"),
        ("<line class=write x1=7 y1=0 x2=7 y2=11 />", "write applied"),
        ("<path class=refused d='M3 1l8 9M11 1l-8 9'/>", "write refused as stale"),
        ("<circle class=unknown cx=7 cy=5.5 r=4 />", "answer lost, or nothing written"),
        ("<path class=lost d='M2 1h10l-5 9z'/>", "told that the lock is lost"),
        ("<rect class=fault width=14 height=11 />", "fault"),
        ("<rect class=forget width=14 height=11 />", "fault that may cost a node its locks"),
        ("<rect class=frozen width=14 height=11 />", "client frozen"),
    ] {
        let _ = write!(page, "<span><svg width=14 height=11>{drawing}</svg> {what}</span>");
    }
    page.push_str("</div><p class=soft>Pointing at something tells what it is. On a narrow screen a strip can be moved sideways.</p>");
}

/// What one strip has in it.
#[derive(Default)]
struct Content<'a> {
    faults: Vec<&'a Fault>,
    holds: Vec<(&'a Life, &'a Hold)>,
    findings: Vec<&'a Finding>,
    granted: usize,
    stale: usize,
    lost: usize,
}

fn strips(page: &mut String, history: &History, verdict: &Verdict, lives: &[Life]) {
    let mut strips: BTreeMap<u64, Content<'_>> = BTreeMap::new();
    let within = |from: Micros, to: Micros| from / STRIP..=to.max(from) / STRIP;
    for fault in &history.faults {
        within(fault.at, fault.until).for_each(|strip| strips.entry(strip).or_default().faults.push(fault));
    }
    for life in lives {
        let Some(hold) = &life.hold else { continue };
        within(hold.at, last(hold)).for_each(|strip| strips.entry(strip).or_default().holds.push((life, hold)));
        strips.entry(hold.at / STRIP).or_default().granted += 1;
        if let Some((at, _)) = hold.lost {
            strips.entry(at / STRIP).or_default().lost += 1;
        }
        for (at, _) in hold.writes.iter().filter_map(stale) {
            strips.entry(at / STRIP).or_default().stale += 1;
        }
    }
    for finding in &verdict.findings {
        strips.entry(finding.at / STRIP).or_default().findings.push(finding);
    }

    // The first strip shows what is usual; after it, those first in which somebody has to look.
    let mut order: Vec<u64> = strips.keys().copied().collect();
    order.sort_by_key(|strip| {
        let content = &strips[strip];
        let violations = content.findings.iter().filter(|finding| finding.is_violation()).count();
        (*strip != 0, std::cmp::Reverse(violations), std::cmp::Reverse(content.stale), std::cmp::Reverse(content.lost))
    });
    let open: Vec<u64> = order.into_iter().take(OPEN_MAX).collect();
    for (strip, content) in &strips {
        let (from, to) = (strip * STRIP, (strip + 1) * STRIP);
        let violations = content.findings.iter().filter(|finding| finding.is_violation()).count();
        let excused = content.findings.len() - violations;
        let _ = write!(
            page,
            "<details{}><summary><b>{} to {} s</b> <span class=soft>{} faults, {} grants, {} lost, {} refused, {excused} \
             excused</span>{}</summary><div class=strip>",
            if open.contains(strip) { " open" } else { "" },
            from / 1_000_000,
            to / 1_000_000,
            content.faults.len(),
            content.granted,
            content.lost,
            content.stale,
            if violations == 0 { String::new() } else { format!(" <b class=bad>{violations} violations</b>") },
        );
        draw(page, from, content);
        page.push_str("</div></details>");
    }
}

/// The last moment at which something is to be drawn.
fn last(hold: &Hold) -> Micros {
    let answers = hold.writes.iter().map(|write| write.answer.as_ref().map_or(write.from, |(at, _)| *at));
    let ends = [hold.valid_until, hold.released.unwrap_or(0), hold.lost.map_or(0, |(at, _)| at)];
    answers.chain(ends).max().unwrap_or(hold.at)
}

fn stale(write: &crate::life::Write) -> Option<(Micros, i64)> {
    match &write.answer {
        Some((at, Outcome::Stale { highest })) => Some((*at, *highest)),
        _ => None,
    }
}

/// A strip's place on the page.
struct Frame {
    from: Micros,
}

impl Frame {
    /// Where a moment is, kept within the strip.
    fn x(&self, at: Micros) -> f64 {
        let at = at.clamp(self.from, self.from + STRIP) - self.from;
        LABEL + (WIDTH - LABEL) * seconds(at) / seconds(STRIP)
    }

    fn has(&self, at: Micros) -> bool {
        (self.from..self.from + STRIP).contains(&at)
    }
}

/// Exact enough for a picture, and for as long as anybody has.
fn seconds(at: Micros) -> f64 {
    f64::from(u32::try_from(at / 1_000).unwrap_or(u32::MAX)) / 1_000.0
}

/// Rows from top to bottom: nodes, databases, the workers of each client.
fn row(target: Target) -> usize {
    match target {
        Target::Node(node) => node,
        Target::Database(database) => {
            NODES + Database::ALL.iter().position(|known| *known == database).unwrap_or_default()
        }
        Target::Client(client) => NODES + Database::ALL.len() + client * workers(),
    }
}

fn workers() -> usize {
    usize::try_from(WORKERS).unwrap_or(1)
}

fn y(row: usize) -> f64 {
    // A little space between nodes, databases and each client.
    let clients_from = NODES + Database::ALL.len();
    let gaps = match row {
        _ if row < NODES => 0,
        _ if row < clients_from => 1,
        _ => 2 + (row - clients_from) / workers(),
    };
    let (row, gaps) = (u32::try_from(row).unwrap_or(0), u32::try_from(gaps).unwrap_or(0));
    HEAD + ROW * f64::from(row) + 5.0 * f64::from(gaps)
}

fn draw(page: &mut String, from: Micros, content: &Content<'_>) {
    let frame = Frame { from };
    let rows = NODES + Database::ALL.len() + CLIENTS * workers();
    let height = y(rows - 1) + ROW + 6.0;
    let _ = write!(
        page,
        "<svg viewBox='0 0 {WIDTH} {height}' role=img aria-label='What happened from {} s on'>",
        from / 1_000_000
    );
    for index in 0..rows {
        let top = y(index);
        let _ = write!(page, "<rect class=ground x={LABEL} y={top} width={} height={} />", WIDTH - LABEL, ROW - 2.0);
        let _ = write!(page, "<text x=2 y={}>{}</text>", top + ROW - 4.5, label(index));
    }
    for second in 0..=STRIP / 1_000_000 {
        let at = from + second * 1_000_000;
        let (x, shift) = (frame.x(at), if second == STRIP / 1_000_000 { "end" } else { "start" });
        let _ = write!(page, "<line class=tick x1={x:.1} y1=13 x2={x:.1} y2={height} />");
        let _ = write!(page, "<text x={x:.1} y=11 text-anchor={shift}>{} s</text>", at / 1_000_000);
    }
    content.faults.iter().for_each(|fault| draw_fault(page, &frame, fault));
    content.faults.iter().for_each(|fault| name_fault(page, &frame, fault, &content.faults));
    content.holds.iter().for_each(|(life, hold)| draw_hold(page, &frame, life, hold));
    for finding in &content.findings {
        let x = frame.x(finding.at);
        let class = if finding.is_violation() { "found" } else { "excused" };
        let title = escape(&finding.to_string());
        let _ =
            write!(page, "<line class={class} x1={x:.1} y1={HEAD} x2={x:.1} y2={height}><title>{title}</title></line>");
    }
    page.push_str("</svg>");
}

fn label(row: usize) -> String {
    let clients_from = NODES + Database::ALL.len();
    match row {
        _ if row < NODES => format!("node {row}"),
        _ if row < clients_from => Database::ALL[row - NODES].to_string(),
        _ => format!("client {}, {}", (row - clients_from) / workers(), (row - clients_from) % workers()),
    }
}

fn draw_fault(page: &mut String, frame: &Frame, fault: &Fault) {
    let (from, to) = (frame.x(fault.at), frame.x(fault.until));
    let width = (to - from).max(2.5);
    let class = match fault.kind {
        Kind::FreezeClient => "frozen",
        kind if kind.memory() != crate::fault::Memory::Kept => "forget",
        _ => "fault",
    };
    let rows = if matches!(fault.target, Target::Client(_)) { workers() } else { 1 };
    let (top, bottom) = (y(row(fault.target)), y(row(fault.target) + rows - 1) + ROW - 2.0);
    let happened = if fault.happened { "" } else { ", was not seen to happen" };
    let title = escape(&format!(
        "{} on {}, {:.3} to {:.3} s{happened}: {}",
        fault.kind,
        fault.target,
        seconds(fault.at),
        seconds(fault.until),
        fault.note
    ));
    let _ = write!(
        page,
        "<rect class={class} x={from:.1} y={top} width={width:.1} height={}><title>{title}</title></rect>",
        bottom - top
    );
}

/// A short name in or beside a fault, where it begins and where there is room: not in the middle of a client's rows, and not
/// over the next one.
fn name_fault(page: &mut String, frame: &Frame, fault: &Fault, all: &[&Fault]) {
    let (from, to) = (frame.x(fault.at), frame.x(fault.until));
    if !frame.has(fault.at) || matches!(fault.target, Target::Client(_)) {
        return;
    }
    let name = short_name(fault.kind);
    let width = 6.0 * f64::from(u32::try_from(name.chars().count()).unwrap_or(0)) + 4.0;
    let inside = from + width < to;
    let x = if inside { from } else { to.max(from + 2.5) } + 2.0;
    let others = all.iter().filter(|other| other.target == fault.target && fault.at < other.at);
    let next = others.map(|other| frame.x(other.at)).fold(WIDTH, f64::min);
    if inside || x + width <= next {
        let y = y(row(fault.target)) + ROW - 4.5;
        let _ = write!(page, "<text class=name x={x:.1} y={y}>{name}</text>");
    }
}

fn short_name(kind: Kind) -> &'static str {
    match kind {
        Kind::FreezeServer | Kind::FreezeClient => "freeze",
        Kind::RestartWithData => "restart",
        Kind::RestartEmpty => "restart empty",
        Kind::CutTail => "tail cut",
        Kind::FlushAll => "flush",
        Kind::ScriptFlush => "scripts",
        Kind::ClientKill => "client kill",
        Kind::Evict => "evict",
        Kind::MemoryLimit => "memory",
        Kind::ClockForward => "clock +",
        Kind::ClockBack => "clock −",
        Kind::Delay => "delay",
        Kind::Loss => "loss",
        Kind::OneWayCut => "cut",
        Kind::Refuse => "refuse",
        Kind::KillClient | Kind::KillPostgres | Kind::KillMariaDb => "kill",
        Kind::BusySqlite => "busy",
    }
}

fn draw_hold(page: &mut String, frame: &Frame, life: &Life, hold: &Hold) {
    let worker = usize::try_from(life.worker).unwrap_or_default();
    let top = y(row(Target::Client(life.client)) + worker);
    let colour = ORDERS.iter().position(|order| order.resource == life.resource).map_or("#888", |order| COLOURS[order]);
    let (middle, height) = (top + (ROW - 2.0) / 2.0, ROW - 2.0);
    let title = escape(&format!(
        "{} under token {} on nodes {:?}: granted at {:.3} s, valid until {:.3} s",
        life.resource,
        hold.granted.token,
        hold.granted.nodes,
        seconds(hold.at),
        seconds(hold.valid_until)
    ));
    let answered = hold.writes.iter().filter_map(|write| write.answer.as_ref().map(|(at, _)| *at)).max();
    let relied_until = hold.relied_until();
    let worked_until = hold.released.or(answered).unwrap_or(relied_until);
    let _ = write!(page, "<g><title>{title}</title>");
    for (class, from, to, inset) in [
        ("held", hold.at, relied_until, 0.0),
        ("valid", relied_until, hold.valid_until, 3.5),
        ("overdue", relied_until, worked_until, 1.0),
    ] {
        if to < frame.from || frame.from + STRIP < from || to <= from && class != "held" {
            continue;
        }
        // Told of its loss before the end of its validity: what is left of that is nothing to be relied on.
        if class == "valid" && hold.released.is_none_or(|at| relied_until < at) {
            continue;
        }
        let (from, to) = (frame.x(from), frame.x(to));
        let fill = if class == "overdue" { "none" } else { colour };
        let _ = write!(
            page,
            "<rect class={class} x={from:.1} y={:.1} width={:.1} height={:.1} fill='{fill}'/>",
            top + inset,
            (to - from).max(1.0),
            height - 2.0 * inset
        );
    }
    page.push_str("</g>");
    for write in &hold.writes {
        let Some((at, outcome)) = &write.answer else { continue };
        if !frame.has(*at) {
            continue;
        }
        let x = frame.x(*at);
        let _ = match outcome {
            Outcome::Applied if write.kind == WriteKind::Claim => Ok(()),
            Outcome::Applied => write!(page, "<line class=write x1={x:.1} y1={top} x2={x:.1} y2={} />", top + height),
            Outcome::Stale { highest } => write!(
                page,
                "<path class=refused d='M{:.1} {:.1}l8 9m0-9l-8 9'><title>refused: token {} after {highest}, at {:.3} s</title></path>",
                x - 4.0,
                middle - 4.5,
                hold.granted.token,
                seconds(*at)
            ),
            Outcome::Unknown { why } | Outcome::Failed { why } => write!(
                page,
                "<circle class=unknown cx={x:.1} cy={middle:.1} r=4><title>{}</title></circle>",
                escape(why)
            ),
        };
    }
    if let Some((at, _)) = hold.lost.filter(|(at, _)| frame.has(*at)) {
        let x = frame.x(at);
        let _ = write!(
            page,
            "<path class=lost d='M{:.1} {:.1}h10l-5 9z'><title>told at {:.3} s that the lock is lost</title></path>",
            x - 5.0,
            middle - 4.5,
            seconds(at)
        );
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::story::{S, Story};
    use crate::history::Said;

    fn shown() -> String {
        let mut history = Story::default()
            .grant(1, S, S + 10, 5)
            .fault(Kind::FreezeClient, Target::Client(1), S + 20, 4 * S)
            .grant(2, 3 * S, 3 * S + 10, 6)
            .line(4 * S, 1, Said::Lost { why: "over".into(), expired: true })
            .write(1, 11, 4 * S, 4 * S + 10, Outcome::Stale { highest: 6 })
            .0;
        history.setup.kinds = vec![Kind::FreezeClient, Kind::Evict];
        history.trouble.push("a <server> & its log".into());
        page(&history, &Verdict::of(&history))
    }

    #[test]
    fn the_page_shows_grants_faults_losses_and_refusals() {
        let page = shown();
        assert!(page.contains("r under token 5 on nodes [0, 1, 2]: granted at 1.000 s"));
        assert!(page.contains("freeze a client on client 1, 1.000 to 4.000 s"));
        assert!(page.contains("told at 4.000 s that the lock is lost"));
        assert!(page.contains("refused: token 5 after 6"));
    }

    #[test]
    fn what_never_happened_and_what_went_wrong_with_the_harness_is_said() {
        let page = shown();
        assert!(page.contains("<li><b>0</b>evict keys <span class=bad>never happened</span>"));
        assert!(page.contains("a &lt;server&gt; &amp; its log"));
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = shown();
        for word in ["http", "src=", "@import", "url("] {
            assert!(!page.contains(word), "{word}");
        }
    }
}
