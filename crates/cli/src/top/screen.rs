//! What is drawn. A function of what was seen, and of nothing else.

use super::look::{Look, NodeSeen};
use crate::inspect;
use crate::survey::Verdict;
use crate::table::{clean, time};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use redlock_core::tally::quorum_of;
use std::time::Duration;

const HEADING: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws a look; locks from this row on.
pub(super) fn draw(frame: &mut Frame<'_>, look: &Look, first_row: usize) {
    let nodes = u16::try_from(look.nodes.len()).unwrap_or(u16::MAX).saturating_add(1);
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(nodes.min(frame.area().height / 2)),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .split(frame.area());
    frame.render_widget(headline(look), areas[0]);
    frame.render_widget(node_table(look), areas[1]);
    frame.render_widget(lock_table(look, first_row), areas[3]);
    frame.render_widget(Line::from("q quit   ↑ ↓ scroll").style(Style::new().fg(Color::DarkGray)), areas[4]);
}

fn headline(look: &Look) -> Paragraph<'static> {
    let (all, up) = (look.nodes.len(), look.up());
    let quorum = quorum_of(all.max(1));
    let style = match up {
        up if up < quorum => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        up if up < all => Style::new().fg(Color::Yellow),
        _ => Style::new().fg(Color::Green),
    };
    let more = if look.more { " or more" } else { "" };
    let text = format!(
        "redlock {}   {up} of {all} nodes up, {quorum} needed   {}{more} held, {} waiting",
        clean(&look.prefix),
        look.held(),
        look.waiting()
    );
    Paragraph::new(Line::from(text).style(style))
}

fn node_table(look: &Look) -> Table<'static> {
    let heading = ["node", "latency", "locks", "commands/s", "clients", "memory", "up", "version"];
    let rows: Vec<[String; 8]> = look.nodes.iter().map(node_cells).collect();
    let troubled = look.nodes.iter().map(|node| node.trouble.is_some() || node.role.as_deref() == Some("slave"));
    let styled = rows.iter().zip(troubled).map(|(cells, troubled)| {
        let style = if troubled { Style::new().fg(Color::Red) } else { Style::new() };
        Row::new(cells.iter().cloned().map(Cell::from)).style(style)
    });
    Table::new(styled, widths(&heading, &rows)).header(Row::new(heading).style(HEADING)).column_spacing(2)
}

fn node_cells(node: &NodeSeen) -> [String; 8] {
    if let Some(trouble) = &node.trouble {
        let mut cells: [String; 8] = std::array::from_fn(|_| String::new());
        (cells[0], cells[1]) = (node.node.clone(), "down".into());
        cells[7] = clean(trouble);
        return cells;
    }
    let or_dash = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let version = node.version.as_deref().map(clean).unwrap_or_else(|| "-".into());
    [
        node.node.clone(),
        node.latency_us.map_or_else(|| "-".into(), |micros| time(Duration::from_micros(micros))),
        node.locks.to_string(),
        or_dash(node.commands_per_second),
        or_dash(node.clients),
        node.used_bytes.map_or_else(|| "-".into(), |bytes| format!("{} MB", bytes.div_ceil(1 << 20))),
        node.up_seconds.map_or_else(|| "-".into(), |seconds| time(Duration::from_secs(seconds))),
        if node.role.as_deref() == Some("slave") { format!("{version}, a replica") } else { version },
    ]
}

fn lock_table(look: &Look, first_row: usize) -> Table<'static> {
    let heading = ["resource", "holder", "for", "nodes", "token", "waiting"];
    let cells: Vec<[String; 6]> = look
        .locks
        .iter()
        .map(|lock| inspect::cells(lock).try_into().expect("as many cells as there are headings"))
        .collect();
    let style = |verdict: &Verdict| match verdict {
        Verdict::Held { .. } => Style::new(),
        Verdict::Free => Style::new().fg(Color::DarkGray),
        Verdict::Undecided | Verdict::Unknown => Style::new().fg(Color::Yellow),
    };
    let rows = cells.iter().zip(&look.locks).skip(first_row);
    let rows = rows.map(|(cells, lock)| Row::new(cells.iter().cloned().map(Cell::from)).style(style(&lock.verdict)));
    Table::new(rows, widths(&heading, &cells)).header(Row::new(heading).style(HEADING)).column_spacing(2)
}

/// Each column as wide as its widest cell; the last one takes what is left.
fn widths<const N: usize>(heading: &[&str; N], rows: &[[String; N]]) -> Vec<Constraint> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        let widest = cells.chain([heading[column].chars().count()]).max().unwrap_or(0);
        u16::try_from(widest).unwrap_or(u16::MAX)
    };
    (0..N).map(|column| if column + 1 == N { Constraint::Min(0) } else { Constraint::Length(width(column)) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::{LockOnNode, LockSeen, State};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(look: &Look, width: u16, height: u16, first_row: usize) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, look, first_row)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines =
            (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned());
        lines.collect::<Vec<_>>().join("\n")
    }

    fn look() -> Look {
        let node = |name: &str| NodeSeen {
            node: name.into(),
            latency_us: Some(150),
            role: Some("master".into()),
            version: Some("7.0.15".into()),
            clients: Some(3),
            commands_per_second: Some(120),
            used_bytes: Some(3 << 20),
            up_seconds: Some(90),
            locks: 1,
            ..NodeSeen::default()
        };
        let down =
            NodeSeen { node: "c:6379".into(), trouble: Some("connection refused".into()), ..NodeSeen::default() };
        let lock = |name: &str, verdict: Verdict, waiting| LockSeen {
            resource: name.into(),
            verdict,
            waiting,
            nodes: ["a:6379", "b:6379", "c:6379"]
                .map(|node| LockOnNode { node: node.into(), state: State::Free, counter: None, waiting: None })
                .to_vec(),
        };
        let held = Verdict::Held { holder: "0123abcd…".into(), on: 2, remaining_ms: Some(8_200), token: Some(77) };
        let locks = vec![lock("orders/42", held, Some(2)), lock("a\u{1b}[2J", Verdict::Undecided, None)];
        Look { prefix: "lock:".into(), nodes: vec![node("a:6379"), node("b:6379"), down], locks, more: false }
    }

    #[test]
    fn a_screen_shows_nodes_and_locks() {
        let expected = "\
redlock lock:   2 of 3 nodes up, 2 needed   1 held, 2 waiting

node    latency  locks  commands/s  clients  memory  up     version
a:6379  0.15 ms  1      120         3        3 MB    2 min  7.0.15
b:6379  0.15 ms  1      120         3        3 MB    2 min  7.0.15
c:6379  down                                                connection refused

resource    holder     for    nodes  token  waiting
orders/42   0123abcd…  8.2 s  2/3    77     2
a\\u{1b}[2J  undecided  -      0/3    -      -

q quit   ↑ ↓ scroll";
        assert_eq!(drawn(&look(), 80, 12, 0), expected);
    }

    #[test]
    fn scrolling_leaves_the_first_rows_out() {
        let text = drawn(&look(), 80, 12, 1);
        assert!(!text.contains("orders/42") && text.contains("undecided"), "{text}");
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (5, 3), (20, 5), (300, 100)] {
            drawn(&look(), width, height, 0);
            drawn(&Look::default(), width, height, 7);
        }
    }
}
