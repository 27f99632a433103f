//! `redlock run` at a terminal, called from a shell with job control, as people do.

use crate::support::*;
use redlock_bench::Servers;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Somebody at a terminal. What is typed is echoed, so what a program is to say is typed with a quote in the middle.
struct Terminal {
    keys: ChildStdin,
    screen: ChildStdout,
    unread: String,
    _process: Child,
}

const CTRL_C: &str = "\u{3}";
const CTRL_Z: &str = "\u{1a}";

/// A program that can be stopped at any moment. A shell that starts its own by vfork, as dash does, cannot while it does so, whoever
/// has called it.
const UNTIL_GO: &str = "redlock run --ttl 1m r -- bash -c \"echo sta''rted; until [ -e go ]; do sleep 0.02; done\"";

impl Terminal {
    /// A terminal whose session this program leads.
    fn of(redlock: &Redlock, leader: &str) -> Self {
        let mut command = std::process::Command::new("script");
        redlock.prepare(&mut command);
        command.env("SHELL", "/bin/sh").env("TERM", "dumb");
        command.args(["-q", "-c", leader, "/dev/null"]);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut process = Command::from(command).kill_on_drop(true).spawn().expect("there is `script`");
        let (keys, screen) = (process.stdin.take().expect("piped"), process.stdout.take().expect("piped"));
        Self { keys, screen, unread: String::new(), _process: process }
    }

    fn with_a_shell(redlock: &Redlock) -> Self {
        let program = program();
        let folder = program.parent().expect("it is in a folder").display();
        Self::of(redlock, &format!("PATH={folder}:$PATH PS1='prompt> ' exec bash --norc --noprofile -i"))
    }

    async fn type_in(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).await.expect("the terminal is there");
    }

    async fn enter(&mut self, line: &str) {
        self.type_in(&format!("{line}\n")).await;
    }

    /// The shell is there, and takes what is typed.
    async fn has_its_shell(&mut self) {
        self.enter("echo the-shell-is-the''re").await;
        self.see("the-shell-is-there").await;
    }

    /// Waits for a text, and forgets what was before it and the text itself.
    async fn see(&mut self, text: &str) {
        let look = async {
            loop {
                if let Some(at) = self.unread.find(text) {
                    self.unread.drain(..at + text.len());
                    return true;
                }
                let mut bytes = [0; 1024];
                let read = self.screen.read(&mut bytes).await.unwrap_or_default();
                if read == 0 {
                    return false;
                }
                self.unread.push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        };
        let seen = tokio::time::timeout(LONG, look).await;
        assert_eq!(seen, Ok(true), "{text:?} is not on the screen: {:?}", self.unread);
    }
}

/// One that was sent to the background does not take the terminal from the shell, neither while it is stopped nor when it ends.
#[tokio::test]
async fn a_command_in_the_background_leaves_the_terminal_to_the_shell() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let mut terminal = Terminal::with_a_shell(&redlock);
    terminal.enter(UNTIL_GO).await;
    terminal.see("started").await;
    terminal.type_in(CTRL_Z).await;
    terminal.see("Stopped").await;
    terminal.enter("bg; echo sent-to-the-back''ground").await;
    terminal.see("sent-to-the-background").await;
    std::fs::write(redlock.note("go"), "")?;
    // It is over before the lock is given back.
    assert_no_locks(&servers, LONG).await;
    terminal.enter("wait; echo the-shell-is-the''re").await;
    terminal.see("the-shell-is-there").await;
    Ok(())
}

/// A program that was begun in the background and reads what is typed is stopped, as without the command, and goes on in front.
#[tokio::test]
async fn a_program_that_reads_in_the_background_goes_on_in_front() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let mut terminal = Terminal::with_a_shell(&redlock);
    terminal.enter("redlock run --ttl 1m r -- sh -c 'read typed; echo got-$typed' &").await;
    terminal.enter("until jobs | grep Stopped; do sleep 0.05; done; echo it-is-stop''ped").await;
    terminal.see("it-is-stopped").await;
    terminal.enter("fg").await;
    terminal.enter("something").await;
    terminal.see("got-something").await;
    terminal.has_its_shell().await;
    Ok(())
}

/// The terminal is not stdin: a program that is fed by a pipe may ask for a password, and so may a pager that reads the program's
/// output.
#[tokio::test]
async fn in_a_pipeline_whoever_wants_the_terminal_gets_it() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let mut terminal = Terminal::with_a_shell(&redlock);
    let ask = "sh -c \"echo ask''ed; read typed < /dev/tty; echo got-\\$typed\"";
    for (position, line) in [
        format!("echo fed | redlock run r -- {ask}"),
        format!("redlock run r -- echo piped | {ask}"),
        format!("redlock run r -- {ask} | cat"),
        format!("echo fed | redlock run r -- {ask} | cat"),
    ]
    .iter()
    .enumerate()
    {
        terminal.enter(line).await;
        terminal.see("asked").await;
        terminal.enter(&format!("{position}")).await;
        terminal.see(&format!("got-{position}")).await;
    }
    terminal.has_its_shell().await;
    Ok(())
}

/// A script goes on at the terminal while the command works in its background.
#[tokio::test]
async fn what_a_script_sends_to_the_background_does_not_take_the_terminal() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let mut terminal = Terminal::with_a_shell(&redlock);
    let script = "redlock run r -- sh -c 'echo started; until [ -e go ]; do sleep 0.02; done' &\n\
                  read typed; echo got-$typed; touch go; wait";
    std::fs::write(redlock.note("script"), script)?;
    terminal.enter("sh script").await;
    terminal.see("started").await;
    terminal.enter("something").await;
    terminal.see("got-something").await;
    Ok(())
}

/// Ctrl-Z stops all that was called with the command: a script around it, and the others in its pipeline.
#[tokio::test]
async fn what_is_typed_to_stop_stops_the_whole_job() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let mut terminal = Terminal::with_a_shell(&redlock);
    std::fs::write(redlock.note("script"), format!("{UNTIL_GO}\necho after-it\n"))?;
    for line in ["sh script", &format!("{UNTIL_GO} | cat; echo after-''it")] {
        terminal.enter(line).await;
        terminal.see("started").await;
        terminal.type_in(CTRL_Z).await;
        terminal.see("Stopped").await;
        // The program, too: it does not see that it is to go on.
        std::fs::write(redlock.note("go"), "")?;
        terminal.enter("jobs; echo sto''od").await;
        terminal.see("Stopped").await;
        terminal.see("stood").await;
        terminal.enter("fg; echo after-''it").await;
        terminal.see("after-it").await;
        assert_no_locks(&servers, LONG).await;
        std::fs::remove_file(redlock.note("go"))?;
    }
    Ok(())
}

/// Where no shell could let it go on (`ssh -t HOST redlock run …`), Ctrl-Z stops nothing for good.
#[tokio::test]
async fn without_a_shell_nothing_is_stopped_for_good() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let run = format!("exec {} run r -- sh -c \"echo started; read typed; echo got-\\$typed\"", program().display());
    let mut terminal = Terminal::of(&redlock, &run);
    terminal.see("started").await;
    terminal.type_in(CTRL_Z).await;
    terminal.enter("something").await;
    terminal.see("got-something").await;
    Ok(())
}

/// Ctrl-C is meant for the script as well that calls the command again and again.
#[tokio::test]
async fn what_is_typed_to_end_ends_the_script_around_as_well() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let mut terminal = Terminal::with_a_shell(&redlock);
    terminal.enter("sh -c 'while :; do redlock run r -- sh -c \"echo sta\"\"rted; exec sleep 300\"; done'").await;
    terminal.see("started").await;
    terminal.type_in(CTRL_C).await;
    terminal.see("prompt>").await;
    terminal.has_its_shell().await;
    assert_no_locks(&servers, LONG).await;
    Ok(())
}

/// It reaches the program once, whether it has the terminal or not.
#[tokio::test]
async fn what_is_typed_to_end_reaches_the_program_once() -> TestResult {
    let servers = Servers::start(1).await?;
    let redlock = Redlock::of(&servers);
    let mut terminal = Terminal::with_a_shell(&redlock);
    let count = "sh -c \"trap 'echo got >> counted' INT; echo sta''rted; until [ -e go ]; do sleep 0.02; done\"";
    for line in [format!("redlock run r -- {count}"), format!("redlock run r -- {count} | (trap '' INT; cat)")] {
        terminal.enter(&line).await;
        terminal.see("started").await;
        terminal.type_in(CTRL_C).await;
        assert_eq!(note_in(&redlock.note("counted")).await, "got");
        std::fs::write(redlock.note("go"), "")?;
        assert_no_locks(&servers, LONG).await;
        assert_eq!(read(&redlock.note("counted")), "got\n", "{line}");
        for note in ["counted", "go"] {
            std::fs::remove_file(redlock.note(note))?;
        }
    }
    Ok(())
}
