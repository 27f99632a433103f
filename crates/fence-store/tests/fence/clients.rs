//! Programs that know nothing of this crate: the command line clients of the databases.

use std::io::Write;
use std::process::{Command, Stdio};

use redlock_bench::process::find_program;

use crate::support::TestDb;

/// A database with a command line client.
pub(crate) trait Client: TestDb {
    /// The client, ready to read statements from its input, to stop at the first error, and to write values only.
    fn command(url: &str) -> Command;

    /// What to send before anything else.
    const PREAMBLE: &'static str = "";

    /// What makes it go on after an error: an argument, and a line to send.
    const GO_ON: (&'static [&'static str], &'static str);
}

/// Runs a text through the client of a database; `Err` is what it told its user.
pub(crate) fn client<DB: Client>(url: &str, text: &str) -> Result<String, String> {
    let (success, told, errors) = run::<DB>(DB::command(url), text);
    // Notices are no errors.
    if success { Ok(told) } else { Err(errors) }
}

/// Runs a text to its end, whatever fails in it, and returns what its user was told of failures.
pub(crate) fn stubborn_client<DB: Client>(url: &str, text: &str) -> String {
    let mut command = DB::command(url);
    let (arguments, line) = DB::GO_ON;
    command.args(arguments);
    run::<DB>(command, &[line, text].concat()).2
}

fn run<DB: Client>(mut command: Command, text: &str) -> (bool, String, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut input = child.stdin.take().unwrap();
    let text = [DB::PREAMBLE, text, "\n"].concat();
    // A client that has stopped at an error reads no further; one that tells of many wants to be read meanwhile.
    let writer = std::thread::spawn(move || drop(input.write_all(text.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn program(names: &[&str], package: &str) -> std::path::PathBuf {
    let found = names.iter().find_map(find_program);
    found.unwrap_or_else(|| panic!("{} is not installed: apt-get install {package}", names.join(" or ")))
}

#[cfg(feature = "postgres")]
impl Client for sqlx::Postgres {
    const GO_ON: (&'static [&'static str], &'static str) = (&["--set=ON_ERROR_STOP=0"], "");

    fn command(url: &str) -> Command {
        // The one on the search path may be a script that looks for the right version, and takes longer than the work.
        let beside = Command::new("pg_config")
            .arg("--bindir")
            .output()
            .ok()
            .map(|output| std::path::Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("psql"));
        let psql = beside.filter(|file| file.is_file()).unwrap_or_else(|| program(&["psql"], "postgresql-client"));
        let mut command = Command::new(psql);
        command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]).arg(url);
        command
    }
}

#[cfg(feature = "mysql")]
impl Client for sqlx::MySql {
    const GO_ON: (&'static [&'static str], &'static str) = (&["--force"], "");

    fn command(url: &str) -> Command {
        // mysql://user@host:port/database
        let address = url.strip_prefix("mysql://").unwrap();
        let (user, address) = address.split_once('@').unwrap();
        let (address, database) = address.split_once('/').unwrap();
        let (host, port) = address.split_once(':').unwrap();
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        let mut command = Command::new(program(&["mariadb", "mysql"], "mariadb-client"));
        command
            .args([
                "--no-defaults",
                "--batch",
                "--skip-column-names",
                "--protocol=tcp",
                "--default-character-set=utf8mb4",
            ])
            .args(["--host", host, "--port", port, "--user", user, database])
            .env("MYSQL_PWD", password);
        command
    }
}

#[cfg(feature = "sqlite")]
impl Client for sqlx::Sqlite {
    const PREAMBLE: &'static str = ".timeout 20000\n";
    const GO_ON: (&'static [&'static str], &'static str) = (&[], ".bail off\n");

    fn command(url: &str) -> Command {
        let file = url.strip_prefix("sqlite://").unwrap();
        let mut command = Command::new(program(&["sqlite3"], "sqlite3"));
        command.args(["-batch", "-bail"]).arg(file);
        command
    }
}
