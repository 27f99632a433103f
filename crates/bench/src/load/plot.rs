//! Draws a figure as SVG: bars with the spread of their blocks, or lines. Pure.
//!
//! Narrow enough for a phone, where it fills the width; on a larger screen several stand side by side. Colours come from
//! a style sheet that follows the reader's preference for dark or light, inside the picture where it stands alone.

use std::fmt::Write as _;

use super::findings::{Figure, Unit, number};

/// The width of a picture, in its own units; a letter of text is 13 high.
const WIDTH: f64 = 420.0;

/// Left and right of everything.
const MARGIN: f64 = 12.0;

/// From one bar to the next.
const BAR_PITCH: f64 = 38.0;

/// Below the title.
const TOP: f64 = 54.0;

/// The height of the field in which lines are drawn.
const FIELD: f64 = 180.0;

/// The colours and letters of all pictures.
pub const STYLE: &str = "\
.plot{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;--ink:#1f2430;--soft:#667085;--grid:#e4e7ec;\
--ours:#1d5fd1;--floor:#7b8494;--a:#c2570c;--b:#8a3fb5;--c:#0f7f6c;--d:#a8326b;--bad:#c1272d}\
@media(prefers-color-scheme:dark){.plot{--ink:#e6e9ef;--soft:#98a2b3;--grid:#333b49;--ours:#6ea8ff;--floor:#98a2b3;\
--a:#f59e5b;--b:#c890ee;--c:#4fc9b2;--d:#f58ab8;--bad:#ff7a7a}}\
.plot text{fill:var(--ink)}.plot .title{font-weight:600;font-size:15px}.plot .soft{fill:var(--soft)}\
.plot .value{text-anchor:end;font-variant-numeric:tabular-nums}.plot .end{text-anchor:end}.plot .middle{text-anchor:middle}\
.plot .grid{stroke:var(--grid)}.plot .whisker{stroke:var(--ink);stroke-width:1.5;opacity:.75}\
.plot .ours{fill:var(--ours);stroke:var(--ours)}.plot .floor{fill:var(--floor);stroke:var(--floor)}\
.plot .a{fill:var(--a);stroke:var(--a)}.plot .b{fill:var(--b);stroke:var(--b)}.plot .c{fill:var(--c);stroke:var(--c)}\
.plot .d{fill:var(--d);stroke:var(--d)}\
.plot rect{stroke:none!important}.plot polyline{fill:none!important;stroke-width:2.2;stroke-linejoin:round}\
.plot circle{stroke:none!important}.plot .goal{stroke:var(--bad);stroke-dasharray:4 3;stroke-width:1.5}\
.plot .goal-text{fill:var(--bad)}";

/// Whose a mark is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Our lock.
    Ours,
    /// What nobody can do without.
    Floor,
    /// Another one, the n-th.
    Other(usize),
}

/// One bar.
#[derive(Debug, Clone)]
pub struct Bar {
    /// What it is called.
    pub label: String,
    /// How long it is, and how its blocks spread; none for one that could not be measured.
    pub figure: Option<Figure>,
    /// Whose it is.
    pub tone: Tone,
}

/// Points that belong together.
#[derive(Debug, Clone)]
pub struct Series {
    /// What they are called.
    pub label: String,
    /// Whose they are.
    pub tone: Tone,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// A picture.
#[derive(Debug, Clone)]
pub enum Plot {
    /// Horizontal bars.
    Bars {
        /// A short name, for a file.
        id: String,
        /// The headline.
        title: String,
        /// What is counted, in words.
        axis: String,
        /// Whether ten times as much is a step further, and not ten times as long.
        log: bool,
        /// From top to bottom.
        bars: Vec<Bar>,
        /// Where a goal lies.
        goal: Option<f64>,
    },
    /// Lines over a scale of doublings.
    Lines {
        /// A short name, for a file.
        id: String,
        /// The headline.
        title: String,
        /// What is counted upwards, in words.
        axis: String,
        /// What is counted to the right.
        across: String,
        /// What the values count.
        unit: Unit,
        /// All of them.
        series: Vec<Series>,
    },
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Floor => "floor",
            Self::Other(number) => ["a", "b", "c", "d"][number % 4],
        }
    }
}

impl Plot {
    /// A short name, for a file.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Bars { id, .. } | Self::Lines { id, .. } => id,
        }
    }

    /// The headline.
    #[must_use]
    pub fn title(&self) -> &str {
        match self {
            Self::Bars { title, .. } | Self::Lines { title, .. } => title,
        }
    }

    /// The picture; one that stands alone brings its colours.
    #[must_use]
    pub fn svg(&self, stands_alone: bool) -> String {
        let (height, body) = match self {
            Self::Bars { axis, log, bars, goal, .. } => draw_bars(axis, *log, bars, *goal),
            Self::Lines { axis, across, unit, series, .. } => draw_lines(axis, across, *unit, series),
        };
        let mut svg = String::new();
        let namespace = if stands_alone { " xmlns=\"http://www.w3.org/2000/svg\"" } else { "" };
        let title = escaped(self.title());
        let _ = write!(
            svg,
            "<svg{namespace} class=\"plot\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\">"
        );
        if stands_alone {
            let _ = write!(svg, "<style>{STYLE}</style>");
        }
        let _ = write!(svg, "{}{body}</svg>", text(MARGIN, 20.0, "title", self.title()));
        svg
    }
}

/// Text for HTML and SVG.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn text(x: f64, y: f64, class: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escaped(words))
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> String {
    format!("<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>", from.0, from.1, to.0, to.1)
}

/// From values to places.
struct Scale {
    log: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let (value, low, high) = match self.log {
            true => (value.max(self.low).ln(), self.low.ln(), self.high.ln()),
            false => (value, self.low, self.high),
        };
        let share = if low < high { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
        self.from + share * (self.to - self.from)
    }
}

fn draw_bars(axis: &str, log: bool, bars: &[Bar], goal: Option<f64>) -> (f64, String) {
    let figures = || bars.iter().filter_map(|bar| bar.figure);
    let highs = figures().map(|figure| figure.spread.map_or(figure.value, |spread| spread.high.max(figure.value)));
    let high = highs.chain(goal).fold(0.0_f64, f64::max);
    let least = figures().map(|figure| figure.value).fold(f64::INFINITY, f64::min);
    // On a scale of decades there is no zero; the shortest bar gets a tenth of one to be seen.
    let low = if log && least.is_finite() && 0.0 < least { least / 1.6 } else { 0.0 };
    let scale = Scale { log: log && 0.0 < low, low, high, from: MARGIN, to: WIDTH - MARGIN };
    let axis = if log { format!("{axis}; scale of decades") } else { axis.to_owned() };
    let mut body = text(MARGIN, 39.0, "soft", &axis);
    let mut y = TOP;
    for Bar { label, figure, tone } in bars {
        let (class, bold) = (tone.class(), if *tone == Tone::Ours { " font-weight=\"600\"" } else { "" });
        let label = text(MARGIN, y + 14.0, "", label).replacen(" class=\"\"", bold, 1);
        body += &label;
        let value = figure.map_or("not measured".to_owned(), |figure| number(figure.value, figure.unit));
        body += &text(WIDTH - MARGIN, y + 14.0, if figure.is_some() { "value" } else { "value soft" }, &value);
        let (top, middle) = (y + 20.0, y + 25.0);
        body += &line("grid", (MARGIN, middle), (WIDTH - MARGIN, middle));
        if let Some(figure) = figure {
            let width = (scale.at(figure.value) - MARGIN).max(1.5);
            let _ = write!(
                body,
                "<rect class=\"{class}\" x=\"{MARGIN}\" y=\"{top}\" width=\"{width:.1}\" height=\"10\" rx=\"2\"/>"
            );
            if let Some(spread) = figure.spread {
                let (from, to) = (scale.at(spread.low), scale.at(spread.high));
                body += &line("whisker", (from, middle), (to, middle));
                body += &line("whisker", (from, top + 1.0), (from, top + 9.0));
                body += &line("whisker", (to, top + 1.0), (to, top + 9.0));
            }
        }
        y += BAR_PITCH;
    }
    if let Some(goal) = goal {
        let x = scale.at(goal);
        body += &line("goal", (x, TOP), (x, y));
        let class = if x < WIDTH / 2.0 { "goal-text" } else { "goal-text end" };
        body += &text(x, y + 12.0, class, &format!("goal: at most {goal}"));
        y += 16.0;
    }
    (y + 4.0, body)
}

fn draw_lines(axis: &str, across: &str, unit: Unit, series: &[Series]) -> (f64, String) {
    let points = || series.iter().flat_map(|series| series.points.iter().copied());
    let high = nice(points().map(|(_, y)| y).fold(0.0_f64, f64::max));
    let left = MARGIN + 46.0;
    let widest = points().map(|(x, _)| x).fold(f64::NEG_INFINITY, f64::max);
    let narrowest = points().map(|(x, _)| x).fold(f64::INFINITY, f64::min);
    let legend_rows = series.len().div_ceil(2);
    let legend = f64::from(u32::try_from(legend_rows).unwrap_or(0)) * 18.0;
    let (top, bottom) = (TOP + legend, TOP + legend + FIELD);
    let to_x =
        Scale { log: 0.0 < narrowest, low: narrowest, high: widest, from: left + 8.0, to: WIDTH - MARGIN - 10.0 };
    let to_y = Scale { log: false, low: 0.0, high, from: bottom, to: top };

    let mut body = text(MARGIN, 39.0, "soft", axis);
    for (place, Series { label, tone, .. }) in series.iter().enumerate() {
        let x = if place.is_multiple_of(2) { MARGIN } else { WIDTH / 2.0 };
        let y = TOP + 4.0 + f64::from(u32::try_from(place / 2).unwrap_or(0)) * 18.0;
        let _ = write!(
            body,
            "<rect class=\"{}\" x=\"{x}\" y=\"{}\" width=\"14\" height=\"4\" rx=\"2\"/>",
            tone.class(),
            y - 6.0
        );
        body += &text(x + 20.0, y, "", label);
    }
    for step in 0..=4_u32 {
        let value = high * f64::from(step) / 4.0;
        let y = to_y.at(value);
        body += &line("grid", (left, y), (WIDTH - MARGIN, y));
        body += &text(left - 6.0, y + 4.0, "soft end", &number(value, unit));
    }
    let mut xs: Vec<f64> = points().map(|(x, _)| x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    for x in xs {
        body += &text(to_x.at(x), bottom + 17.0, "soft middle", &format!("{x:.0}"));
    }
    body += &text(WIDTH - MARGIN, bottom + 35.0, "soft end", across);
    for Series { tone, points, .. } in series {
        let class = tone.class();
        let places: Vec<(f64, f64)> = points.iter().map(|(x, y)| (to_x.at(*x), to_y.at(*y))).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(body, "<polyline class=\"{class}\" points=\"{}\"/>", path.join(" "));
        for (x, y) in places {
            let _ = write!(body, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
        }
    }
    (bottom + 44.0, body)
}

/// The least of 1, 2, 4, 6, 8 times a power of ten that is not below the value, so that quarters of it are round.
fn nice(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let decade = 10_f64.powf(value.log10().floor());
    let step = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0].into_iter().find(|step| value <= step * decade);
    step.unwrap_or(10.0) * decade
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::figures::Spread;

    fn bars(figure: Option<Figure>) -> Plot {
        let bar = Bar { label: "a < b".into(), figure, tone: Tone::Ours };
        let (id, title, axis) = ("x".into(), "X & Y".into(), "µs".into());
        Plot::Bars { id, title, axis, log: false, bars: vec![bar], goal: None }
    }

    #[test]
    fn a_bar_that_was_not_measured_says_so() {
        let svg = bars(None).svg(true);
        assert!(svg.contains("not measured") && !svg.contains("<rect"), "{svg}");
    }

    #[test]
    fn names_are_escaped_and_the_spread_is_drawn() {
        let spread = Some(Spread { low: 1.0, high: 3.0 });
        let svg = bars(Some(Figure { value: 2.0, spread, unit: Unit::Micros })).svg(false);
        assert!(svg.contains("a &lt; b") && svg.contains("X &amp; Y"), "{svg}");
        assert_eq!(svg.matches("class=\"whisker\"").count(), 3);
    }

    #[test]
    fn scales_end_on_round_numbers() {
        assert_eq!([nice(0.9), nice(101.0), nice(3_300.0), nice(0.0)], [1.0, 120.0, 4_000.0, 1.0]);
    }
}
