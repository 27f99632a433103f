//! `redlock top`: locks, holders, waiters and nodes, live.
//!
//! Looks every so often, draws what it has seen, and listens to the keyboard meanwhile. What is drawn is a pure function of what
//! was seen (see `screen`). The terminal is given back however this ends, also by a panic.

mod look;
mod screen;

pub use self::look::{Look, NodeSeen};

use crate::exit::{Exit, Failure, of_signal};
use crate::options::{Common, TopOptions};
use crate::output::Output;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::survey::Survey;
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::DefaultTerminal;
use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior};

/// How often the keyboard is listened to.
const LISTEN_EVERY: Duration = Duration::from_millis(50);

/// What somebody at the keyboard wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    Quit,
    Scroll(isize),
    Redraw,
}

/// Shows what goes on until somebody has seen enough.
///
/// # Errors
/// If no node can be asked, or there is no terminal to draw on.
///
/// # Cancel safety
/// Not to be dropped while it draws: the terminal would stay as it is.
pub async fn top(options: TopOptions, common: &Common, output: &Output) -> Result<u8, Failure> {
    let settings = Settings::gather(common)?;
    if !output.is_json() && !io::stdout().is_terminal() {
        let message =
            "there is no terminal to draw on; `redlock list --watch` prints, and so does `redlock top --json`";
        return Err(Failure::new(Exit::Usage, message));
    }
    let mut survey = Survey::begin(&settings).await?;
    let mut signals = Signals::listen()?;
    if output.is_json() {
        return print(&options, &mut survey, &mut signals, *output).await;
    }
    let mut terminal = ratatui::try_init().map_err(|error| no_terminal(&error))?;
    let shown = show(&mut terminal, &options, &mut survey, &mut signals).await;
    // Err: it is gone, and nobody sees what is left on it.
    let _ = ratatui::try_restore();
    shown
}

fn no_terminal(error: &io::Error) -> Failure {
    Failure::caused(Exit::Output, "the terminal cannot be drawn on", error)
}

async fn print(
    options: &TopOptions,
    survey: &mut Survey,
    signals: &mut Signals,
    output: Output,
) -> Result<u8, Failure> {
    let looks = async {
        loop {
            output.result(&Look::take(survey, options.limit).await, String::new)?;
            tokio::time::sleep(options.every).await;
        }
    };
    tokio::select! {
        signal = signals.next_to_end() => Ok(of_signal(signal.as_raw())),
        failed = looks => failed,
    }
}

/// What is drawn at present, and where.
struct View<'a> {
    terminal: &'a mut DefaultTerminal,
    look: Look,
    first_row: usize,
}

impl View<'_> {
    fn show(&mut self, look: Look) -> Result<(), Failure> {
        self.first_row = self.first_row.min(look.locks.len().saturating_sub(1));
        self.look = look;
        self.draw()
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let drawn = self.terminal.draw(|frame| screen::draw(frame, &self.look, self.first_row));
        drawn.map(drop).map_err(|error| no_terminal(&error))
    }

    /// Does what was typed. Whether it was to quit.
    fn obey(&mut self) -> Result<bool, Failure> {
        while let Some(wish) = wish().map_err(|error| no_terminal(&error))? {
            match wish {
                Wish::Quit => return Ok(true),
                Wish::Scroll(rows) => {
                    let last_row = self.look.locks.len().saturating_sub(1);
                    self.first_row = self.first_row.saturating_add_signed(rows).min(last_row);
                }
                Wish::Redraw => {}
            }
            self.draw()?;
        }
        Ok(false)
    }
}

async fn show(
    terminal: &mut DefaultTerminal,
    options: &TopOptions,
    survey: &mut Survey,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut view = View { terminal, look: Look::default(), first_row: 0 };
    let mut keyboard = tokio::time::interval(LISTEN_EVERY);
    keyboard.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let look = match attended(Look::take(survey, options.limit), &mut view, &mut keyboard, signals).await? {
            ControlFlow::Continue(look) => look,
            ControlFlow::Break(code) => return Ok(code),
        };
        let until = Instant::now() + options.every;
        view.show(look)?;
        let pause = attended(tokio::time::sleep_until(until), &mut view, &mut keyboard, signals).await?;
        if let ControlFlow::Break(code) = pause {
            return Ok(code);
        }
    }
}

/// Waits for something, and does meanwhile what is typed. Breaks off with the number to end with if somebody wants it to end.
async fn attended<T>(
    something: impl Future<Output = T>,
    view: &mut View<'_>,
    keyboard: &mut Interval,
    signals: &mut Signals,
) -> Result<ControlFlow<u8, T>, Failure> {
    let mut something = pin!(something);
    loop {
        tokio::select! {
            signal = signals.next_to_end() => return Ok(ControlFlow::Break(of_signal(signal.as_raw()))),
            _ = keyboard.tick() => if view.obey()? { return Ok(ControlFlow::Break(0)) },
            done = &mut something => return Ok(ControlFlow::Continue(done)),
        }
    }
}

/// What was typed since the last look at the keyboard, if anything.
fn wish() -> io::Result<Option<Wish>> {
    while event::poll(Duration::ZERO)? {
        let wish = match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => wish_of(key),
            Event::Resize(..) => Some(Wish::Redraw),
            _ => None,
        };
        if wish.is_some() {
            return Ok(wish);
        }
    }
    Ok(None)
}

fn wish_of(key: KeyEvent) -> Option<Wish> {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
        KeyCode::Down | KeyCode::Char('j') => Some(Wish::Scroll(1)),
        KeyCode::Up | KeyCode::Char('k') => Some(Wish::Scroll(-1)),
        KeyCode::PageDown => Some(Wish::Scroll(10)),
        KeyCode::PageUp => Some(Wish::Scroll(-10)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_understood() {
        let typed = |code, modifiers| wish_of(KeyEvent::new(code, modifiers));
        assert_eq!(typed(KeyCode::Char('q'), KeyModifiers::NONE), Some(Wish::Quit));
        assert_eq!(typed(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Wish::Quit));
        assert_eq!(typed(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(typed(KeyCode::Up, KeyModifiers::NONE), Some(Wish::Scroll(-1)));
    }
}
