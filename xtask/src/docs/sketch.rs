//! How the drawings of the book look: messages between actors, votes of nodes, spans of time. Pure: a description in, SVG out.
//!
//! As wide as a phone is, where it fills the width. Colours follow the reader's preference for dark or light; they are those
//! of the plots of the bench.

use std::fmt::Write as _;

/// The width of a drawing, in its own units; a letter is 13 high.
pub(super) const WIDTH: f64 = 420.0;

/// From one line to the next.
const PITCH: f64 = 30.0;

/// Where the drawing begins, below its title.
const TOP: f64 = 44.0;

const STYLE: &str = "\
.sketch{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;--ink:#1f2430;--soft:#667085;\
--grid:#d0d5dd;--holds:#1d5fd1;--stands:#98a2b3;--down:#c1272d;--other:#0f7f6c;--third:#8a3fb5;--paper:#fff}\
@media(prefers-color-scheme:dark){.sketch{--ink:#e6e9ef;--soft:#98a2b3;--grid:#475467;--holds:#6ea8ff;--stands:#667085;\
--down:#ff7a7a;--other:#4fc9b2;--third:#c890ee;--paper:#161923}}\
.sketch text{fill:var(--ink)}.sketch .title{font-weight:600;font-size:14px}.sketch .soft{fill:var(--soft)}\
.sketch .middle{text-anchor:middle}.sketch .end{text-anchor:end}.sketch .small{font-size:12px}\
.sketch .life{stroke:var(--grid);stroke-dasharray:3 4}.sketch .grid{stroke:var(--grid);fill:none}\
.sketch .holds{fill:var(--holds)}.sketch .stands{fill:var(--stands)}.sketch .down{fill:var(--down)}\
.sketch .other{fill:var(--other)}.sketch .third{fill:var(--third)}.sketch .letter{fill:var(--paper);font-weight:600}\
.sketch .arrow{stroke:var(--ink);stroke-width:1.5}.sketch .head{fill:var(--ink)}\
.sketch .bad{stroke:var(--down)}.sketch .bad-head{fill:var(--down)}.sketch .bad-text{fill:var(--down)}\
.sketch .cross{stroke:var(--down);stroke-width:2.5}.sketch .halo{stroke:var(--paper);stroke-width:4;paint-order:stroke}";

/// What a bar means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    /// Somebody holds the lock, or believes so.
    Holds,
    /// Somebody stands still, or waits.
    Stands,
    /// Something is gone.
    Down,
    /// Something else.
    Other,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Stands => "stands",
            Self::Down => "down",
            Self::Other => "other",
        }
    }
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It takes effect.
    Arrives,
    /// It takes effect, and should not.
    Harms,
    /// It is refused.
    Refused,
    /// It never arrives.
    Lost,
}

/// About how wide a text is.
pub(super) fn width_of(text: &str) -> f64 {
    text.chars().map(|sign| if "iljtf.,:;'|! ".contains(sign) { 4.2 } else { 7.1 }).sum()
}

/// An SVG that is being written.
#[derive(Debug)]
struct Paper {
    label: String,
    body: String,
}

impl Paper {
    fn new(title: &str) -> Self {
        let mut paper = Self { label: escaped(title), body: String::new() };
        // A title that is too long for one line takes two.
        let (first, second) = halves(title);
        paper.text(12.0, 18.0, "title", &first);
        if let Some(second) = second {
            paper.text(12.0, 36.0, "title", &second);
        }
        paper
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        self.body.write_fmt(element).expect("a string takes everything");
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escaped(text);
        self.add(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"));
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"));
    }

    fn bar(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"3\" class=\"{class}\"/>"
        ));
    }

    fn cross(&mut self, x: f64, y: f64) {
        self.line((x - 5.0, y - 5.0), (x + 5.0, y + 5.0), "cross");
        self.line((x - 5.0, y + 5.0), (x + 5.0, y - 5.0), "cross");
    }

    fn svg(self, height: f64) -> String {
        let Self { label, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"sketch\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
             aria-label=\"{label}\"><style>{STYLE}</style>{body}</svg>\n"
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// A title in one line, or in two.
fn halves(title: &str) -> (String, Option<String>) {
    // Bold letters, and a little higher.
    if 1.25 * width_of(title) < WIDTH - 24.0 {
        return (title.to_owned(), None);
    }
    let middle = title.len() / 2;
    let cut = title.match_indices(' ').map(|(at, _)| at).min_by_key(|at| at.abs_diff(middle));
    match cut {
        Some(at) => (title[..at].to_owned(), Some(title[at + 1..].to_owned())),
        None => (title.to_owned(), None),
    }
}

/// Messages between actors; time goes downwards.
#[derive(Debug)]
pub(super) struct Sequence {
    title: &'static str,
    actors: &'static [&'static str],
    steps: Vec<Step>,
}

#[derive(Debug)]
enum Step {
    Send { from: usize, to: usize, text: &'static str, fate: Fate },
    Begin { actor: usize, tone: Tone, text: &'static str },
    End { actor: usize },
    Note { actor: usize, text: &'static str },
}

impl Sequence {
    pub(super) fn new(title: &'static str, actors: &'static [&'static str]) -> Self {
        Self { title, actors, steps: Vec::new() }
    }

    pub(super) fn send(&mut self, from: usize, to: usize, text: &'static str, fate: Fate) {
        self.steps.push(Step::Send { from, to, text, fate });
    }

    /// From here on an actor is in a state; ends the one before.
    pub(super) fn begin(&mut self, actor: usize, tone: Tone, text: &'static str) {
        self.steps.push(Step::Begin { actor, tone, text });
    }

    pub(super) fn end(&mut self, actor: usize) {
        self.steps.push(Step::End { actor });
    }

    pub(super) fn note(&mut self, actor: usize, text: &'static str) {
        self.steps.push(Step::Note { actor, text });
    }

    /// Where an actor's line of life is.
    fn x(&self, actor: usize) -> f64 {
        let (first, last) = (44.0, WIDTH - 44.0);
        #[expect(clippy::cast_precision_loss, reason = "a handful of actors")]
        let place = actor as f64 / (self.actors.len() - 1).max(1) as f64;
        first + place * (last - first)
    }

    pub(super) fn svg(&self) -> String {
        let mut paper = Paper::new(self.title);
        let top = TOP + 18.0;
        // The end of a state takes no line of its own.
        let rows = self.steps.iter().filter(|step| !matches!(step, Step::End { .. })).count();
        #[expect(clippy::cast_precision_loss, reason = "a handful of lines")]
        let bottom = top + 14.0 + PITCH * rows as f64;
        for (actor, name) in self.actors.iter().enumerate() {
            let x = self.x(actor);
            paper.text(x, top, "middle small", name);
            paper.line((x, top + 6.0), (x, bottom), "life");
        }
        let mut states: Vec<Option<(f64, Tone)>> = vec![None; self.actors.len()];
        let mut labels = Vec::new();
        let mut y = top + 24.0;
        for step in &self.steps {
            match *step {
                Step::End { actor } => {
                    self.close(&mut paper, &mut states, actor, y - PITCH / 2.0);
                    continue;
                }
                Step::Begin { actor, tone, text } => {
                    self.close(&mut paper, &mut states, actor, y - 10.0);
                    states[actor] = Some((y - 8.0, tone));
                    labels.push((actor, y, text, "small"));
                }
                Step::Note { actor, text } => labels.push((actor, y, text, "small soft")),
                Step::Send { from, to, text, fate } => arrow(&mut paper, self.x(from), self.x(to), y, text, fate),
            }
            y += PITCH;
        }
        for actor in 0..self.actors.len() {
            self.close(&mut paper, &mut states, actor, bottom);
        }
        for (actor, y, text, class) in labels {
            self.label(&mut paper, actor, y + 4.0, text, class);
        }
        paper.svg(bottom + 8.0)
    }

    fn close(&self, paper: &mut Paper, states: &mut [Option<(f64, Tone)>], actor: usize, y: f64) {
        if let Some((from, tone)) = states[actor].take() {
            paper.bar((self.x(actor) - 4.0, from), (8.0, y - from), tone.class());
        }
    }

    /// Beside an actor's line, on the side where there is room.
    fn label(&self, paper: &mut Paper, actor: usize, y: f64, text: &str, class: &str) {
        let x = self.x(actor);
        match x + 10.0 + width_of(text) < WIDTH {
            true => paper.text(x + 10.0, y, &format!("{class} halo"), text),
            false => paper.text(x - 10.0, y, &format!("{class} halo end"), text),
        }
    }
}

/// A message.
fn arrow(paper: &mut Paper, from: f64, to: f64, y: f64, text: &str, fate: Fate) {
    let towards = if from < to { 1.0 } else { -1.0 };
    let (start, mut tip) = (from + 6.0 * towards, to - 6.0 * towards);
    if fate == Fate::Lost {
        tip = f64::midpoint(from, to) + 10.0 * towards;
    }
    let (line, head, words) = match fate {
        Fate::Arrives => ("arrow", "head", "middle small halo"),
        Fate::Harms | Fate::Refused | Fate::Lost => ("arrow bad", "bad-head", "middle small halo bad-text"),
    };
    paper.line((start, y), (tip, y), line);
    let back = tip - 8.0 * towards;
    paper.add(format_args!(
        "<path d=\"M{tip:.1} {y:.1}L{back:.1} {:.1}L{back:.1} {:.1}Z\" class=\"{head}\"/>",
        y - 4.0,
        y + 4.0
    ));
    if matches!(fate, Fate::Refused | Fate::Lost) {
        paper.cross(tip + 4.0 * towards, y);
    }
    let middle = f64::midpoint(from, to);
    // A text that is wider than its arrow stays inside the drawing.
    let half = width_of(text) / 2.0;
    paper.text(middle.clamp(half + 4.0, WIDTH - half - 4.0), y - 6.0, words, text);
}

/// Who has the votes of five nodes, moment after moment.
#[derive(Debug)]
pub(super) struct Votes {
    title: &'static str,
    clients: &'static [&'static str],
    rows: Vec<[&'static str; 3]>,
}

impl Votes {
    pub(super) fn new(title: &'static str, clients: &'static [&'static str]) -> Self {
        Self { title, clients, rows: Vec::new() }
    }

    /// One letter per node: whose vote it gave, `·` nobody's, `×` it is down.
    pub(super) fn row(&mut self, what: &'static str, votes: &'static str, so: &'static str) {
        self.rows.push([what, votes, so]);
    }

    pub(super) fn svg(&self) -> String {
        let mut paper = Paper::new(self.title);
        let mut y = TOP + 18.0;
        for [what, votes, so] in &self.rows {
            paper.text(12.0, y, "small", what);
            for (node, vote) in votes.chars().enumerate() {
                #[expect(clippy::cast_precision_loss, reason = "five nodes")]
                let x = 32.0 + 44.0 * node as f64;
                self.vote(&mut paper, x, y + 24.0, vote, node + 1);
            }
            paper.text(12.0, y + 58.0, "small soft", so);
            y += 88.0;
        }
        paper.svg(y - 18.0)
    }

    fn vote(&self, paper: &mut Paper, x: f64, y: f64, vote: char, node: usize) {
        let place = self.clients.iter().position(|client| client.starts_with(vote));
        let class = place.and_then(|place| ["holds", "other", "third"].get(place)).copied().unwrap_or("grid");
        paper.add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"14\" class=\"{class}\"/>"));
        match vote {
            '×' => paper.cross(x, y),
            '·' => paper.text(x, y + 5.0, "middle soft small", &node.to_string()),
            client => paper.text(x, y + 5.0, "middle letter", &client.to_string()),
        }
    }
}

/// Spans of time below each other; time goes to the right.
#[derive(Debug)]
pub(super) struct Spans {
    title: &'static str,
    seconds: f64,
    spans: Vec<(&'static str, f64, f64, Tone, &'static str)>,
}

impl Spans {
    pub(super) fn new(title: &'static str, seconds: f64) -> Self {
        Self { title, seconds, spans: Vec::new() }
    }

    pub(super) fn span(&mut self, what: &'static str, from: f64, to: f64, tone: Tone, inside: &'static str) {
        self.spans.push((what, from, to, tone, inside));
    }

    pub(super) fn svg(&self) -> String {
        let mut paper = Paper::new(self.title);
        let (left, right) = (124.0, WIDTH - 12.0);
        let x = |seconds: f64| left + seconds / self.seconds * (right - left);
        let mut y = TOP;
        for (what, from, to, tone, inside) in &self.spans {
            paper.text(12.0, y + 13.0, "small", what);
            paper.bar((x(*from), y), (x(*to) - x(*from), 18.0), tone.class());
            paper.text(x(f64::midpoint(*from, *to)), y + 13.5, "middle letter small", inside);
            y += 26.0;
        }
        paper.line((left, y), (right, y), "grid");
        for second in [0, 2, 4, 6, 8, 10] {
            let at = x(f64::from(second));
            paper.line((at, y), (at, y + 4.0), "grid");
            paper.text(at, y + 17.0, "middle soft small", &format!("{second} s"));
        }
        paper.svg(y + 26.0)
    }
}
