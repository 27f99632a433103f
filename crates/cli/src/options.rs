//! What can be typed.
//!
//! Nothing secret is an option: arguments can be read by everybody on the machine. Passwords stand in the URLs of a file or
//! of the environment, and the owner of a lock in a file or in the environment.

use crate::exit::Exit;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Locks over a quorum of independent Redis primaries, for programs and for people.
#[derive(Parser, Debug)]
#[command(name = "redlock", version, after_long_help = exit_codes(), disable_help_subcommand = true)]
#[command(max_term_width = 100)]
pub struct Options {
    /// What every command knows.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command knows.
#[derive(Args, Clone, Debug, Default)]
pub struct Common {
    /// The nodes, separated by commas: redis://HOST[:PORT][/DATABASE], rediss://…, unix:///PATH, or HOST[:PORT] alone
    ///
    /// Also REDLOCK_NODES, or `nodes` in the configuration file, where URLs may have user and password. Not here: arguments
    /// can be read by everybody on the machine. REDLOCK_USERNAME and REDLOCK_PASSWORD are for nodes whose URL has none.
    #[arg(long, value_name = "URL,…", global = true, help_heading = "Nodes")]
    pub nodes: Option<String>,

    /// A configuration file in TOML; also REDLOCK_CONFIG
    #[arg(long, value_name = "FILE", global = true, help_heading = "Nodes")]
    pub config: Option<PathBuf>,

    /// What stands before every key; "lock:" by default, also REDLOCK_PREFIX
    #[arg(long, value_name = "TEXT", global = true, help_heading = "Nodes")]
    pub prefix: Option<String>,

    /// How long each node may take to answer; 50ms or a tenth of the ttl by default
    #[arg(long, value_name = "TIME", value_parser = duration, global = true, help_heading = "Nodes")]
    pub node_timeout: Option<Duration>,

    /// Switch the crash-recovery guard on: nodes that have lost their memory do not vote; also REDLOCK_CRASH_GUARD
    ///
    /// The longest ttl that any client of this prefix uses. All clients of a prefix need it, or none; see `redlock enroll`.
    #[arg(long, value_name = "LONGEST-TTL", value_parser = duration, global = true, help_heading = "Nodes")]
    pub crash_guard: Option<Duration>,

    /// Accept an even number of nodes, which tolerate no more failures than one less
    #[arg(long, global = true, help_heading = "Nodes")]
    pub allow_even_nodes: bool,

    /// Print JSON: results on stdout, failures on stderr
    #[arg(long, global = true)]
    pub json: bool,

    /// Say more of what goes on, on stderr; twice for everything
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
}

/// What the command can do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a program under a lock: acquire, keep alive, run, release
    ///
    /// The program runs in a process group of its own, with REDLOCK_FENCING_TOKEN, REDLOCK_RESOURCE (one name on each line)
    /// and REDLOCK_DEADLINE (when it has to be done at the latest, in seconds since 1970) in its environment. Signals are
    /// passed on to the group. If the lock is lost the group is sent TERM and, after the grace time, KILL; the same if the
    /// program ends and leaves something running. The exit code is the program's, or 128 + n if signal n ended it, unless
    /// it is one of redlock's own.
    #[command(visible_alias = "lock")]
    Run(RunOptions),

    /// Take a lock and leave it there, for a script that releases it later
    ///
    /// Prints assignments for a shell (or JSON): REDLOCK_OWNER, REDLOCK_FENCING_TOKEN, REDLOCK_RESOURCE and REDLOCK_DEADLINE,
    /// the end of the validity. Nobody keeps the lock alive; `redlock run` does.
    Acquire(AcquireOptions),

    /// Extend a lock that `redlock acquire` has taken
    Extend(ExtendOptions),

    /// Give back a lock that `redlock acquire` has taken
    Release(HolderOptions),

    /// Show who holds a lock, node by node and in sum
    Inspect {
        /// The locks.
        #[arg(required = true, value_name = "RESOURCE")]
        resources: Vec<String>,
    },

    /// List the locks that are held
    List(ListOptions),

    /// Show locks, holders, waiters and nodes live, on the whole screen
    ///
    /// q, Esc or Ctrl-C ends it; arrows scroll. With --json one line of JSON is printed for each look instead.
    Top(TopOptions),

    /// Break a lock: its holder may still be working
    ForceRelease(ForceReleaseOptions),

    /// Take nodes that have lost their memory back into service, under the crash-recovery guard
    ///
    /// Waits for the end of their quarantine, then tells them where the counters stand, from a quorum of the other nodes. Clients do
    /// the same when they ask for a lock; this is for whoever restarts one node after the other.
    Enroll(EnrollOptions),

    /// Go on after a quorum of nodes has lost its memory, above the tokens that your databases have accepted
    ///
    /// Until then nobody is granted a lock. Waits for the end of the quarantine.
    Reseed(ReseedOptions),

    /// Find out what is wrong with the set-up, what it can cause, and how to mend it
    ///
    /// Looks at every node, at what they are together, at the keys under the prefix, and at the database if there is one in the
    /// configuration file or in REDLOCK_DATABASE. The exit code is 0 if there is nothing but notes, 10 if something could not be
    /// read, 11 for a warning, 12 for an error.
    Doctor(DoctorOptions),

    /// What a database needs in order to refuse late writers
    #[command(subcommand)]
    Fence(FenceCommand),

    /// Print a script that completes what is typed after `redlock`
    Completions {
        /// For which shell.
        shell: Shell,
    },

    /// Print the manual page, for `redlock manual | man -l -`
    #[command(alias = "man")]
    Manual,
}

/// Which lock, and how long to wait for it.
#[derive(Args, Debug)]
pub struct LockOptions {
    /// What to lock: names, all of them or none
    #[arg(required = true, value_name = "RESOURCE")]
    pub resources: Vec<String>,

    /// How long the lock lives when nobody extends it; 10s by default, also REDLOCK_TTL
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub ttl: Option<Duration>,

    /// The longest time to wait for the lock; 10s by default
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "no_wait")]
    pub wait: Option<Duration>,

    /// Do not wait: one attempt
    #[arg(long, short = 'n')]
    pub no_wait: bool,
}

/// `redlock run`.
#[derive(Args, Debug)]
pub struct RunOptions {
    /// Which lock.
    #[command(flatten)]
    pub lock: LockOptions,

    /// How long the program may take to end after TERM before it is sent KILL; a quarter of the ttl by default
    ///
    /// The time is taken from the validity that is left where there is any: TERM is sent early enough, if an extension
    /// could not be confirmed, for KILL to come before the validity ends.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub grace: Option<Duration>,

    /// The longest time for which the lock is kept; the program is stopped then
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1h")]
    pub max_hold: Duration,

    /// If somebody else holds the lock, do nothing, say nothing, and end with code 0: for a job that another machine does then
    #[arg(long)]
    pub skip_if_held: bool,

    /// Let what the program leaves running in its process group go on without the lock
    #[arg(long)]
    pub leave_running: bool,

    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `redlock acquire`.
#[derive(Args, Debug)]
pub struct AcquireOptions {
    /// Which lock.
    #[command(flatten)]
    pub lock: LockOptions,

    /// Write the owner into this file, which nobody else may read, and do not print it
    #[arg(long, value_name = "FILE")]
    pub owner_file: Option<PathBuf>,
}

/// Which lock an earlier call has taken.
#[derive(Args, Debug)]
pub struct HolderOptions {
    /// What was locked: the same names
    #[arg(required = true, value_name = "RESOURCE")]
    pub resources: Vec<String>,

    /// The file with the owner; otherwise it is in REDLOCK_OWNER
    #[arg(long, value_name = "FILE")]
    pub owner_file: Option<PathBuf>,
}

/// `redlock extend`.
#[derive(Args, Debug)]
pub struct ExtendOptions {
    /// Which lock.
    #[command(flatten)]
    pub held: HolderOptions,

    /// How long the lock lives from now on; 10s by default, also REDLOCK_TTL
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub ttl: Option<Duration>,
}

/// `redlock list`.
#[derive(Args, Debug)]
pub struct ListOptions {
    /// Look again every so often, every second by default
    #[arg(long, short, value_name = "TIME", value_parser = duration, num_args = 0..=1, default_missing_value = "1s")]
    pub watch: Option<Duration>,

    /// The most locks to list
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    pub limit: usize,
}

/// `redlock top`.
#[derive(Args, Debug)]
pub struct TopOptions {
    /// How often to look
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    pub every: Duration,

    /// The most locks to look at
    #[arg(long, value_name = "NUMBER", default_value_t = 200)]
    pub limit: usize,
}

/// `redlock force-release`.
#[derive(Args, Debug)]
pub struct ForceReleaseOptions {
    /// The lock.
    #[arg(value_name = "RESOURCE")]
    pub resource: String,

    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// `redlock enroll`.
#[derive(Args, Debug)]
pub struct EnrollOptions {
    /// The deployment is new, or the guard is being switched on: no node has forgotten anything, and all serve at once
    #[arg(long)]
    pub fresh: bool,

    /// Only say how every node stands
    #[arg(long, conflicts_with = "fresh")]
    pub check: bool,
}

/// `redlock reseed`.
#[derive(Args, Debug)]
pub struct ReseedOptions {
    /// The database whose ledger knows the highest token: postgres://…, mysql://…, sqlite:…; several may be named
    ///
    /// Not with a password, which everybody on this machine could read: name `url` under [database] in the configuration file,
    /// and say --from file.
    #[arg(long, value_name = "URL", required_unless_present = "above")]
    pub from: Vec<String>,

    /// The highest token that was accepted anywhere, if you know it: also of rows with a fence of their own
    #[arg(long, value_name = "TOKEN")]
    pub above: Option<i64>,
}

/// `redlock doctor`.
#[derive(Args, Debug)]
pub struct DoctorOptions {
    /// Write nothing: whether nodes can write, and the rights for that, are not tried
    #[arg(long)]
    pub read_only: bool,

    /// A table of the database that is to be guarded, instead of those in the configuration file
    #[arg(long, value_name = "NAME")]
    pub table: Vec<String>,
}

/// `redlock fence`.
#[derive(Subcommand, Debug)]
pub enum FenceCommand {
    /// Print the SQL of the ledger, the fence column and the guard of a table, for a migration
    Sql(FenceSqlOptions),
}

/// `redlock fence sql`.
#[derive(Args, Clone, Debug)]
pub struct FenceSqlOptions {
    /// The database's language
    #[arg(long, value_enum)]
    pub dialect: DialectName,

    /// The table, or schema.table
    #[arg(long, value_name = "NAME")]
    pub table: Option<String>,

    /// The columns of its primary key
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',')]
    pub key: Vec<String>,

    /// The fence column
    #[arg(long, value_name = "NAME", default_value = "fence_token")]
    pub column: String,

    /// The ledger's table
    #[arg(long, value_name = "NAME", default_value = "fence_ledger")]
    pub ledger: String,

    /// A further unique key of the table, which SQLite's REPLACE deletes by
    #[arg(long, value_name = "COLUMN,…")]
    pub unique: Vec<String>,

    /// Let a token write a row several times
    #[arg(long)]
    pub may_rewrite: bool,

    /// Only these parts
    #[arg(long, value_enum, value_name = "PART,…", value_delimiter = ',')]
    pub only: Vec<Part>,

    /// Print what takes the guard away instead
    #[arg(long)]
    pub remove: bool,
}

/// What a database speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DialectName {
    /// Postgres.
    Postgres,
    /// MySQL and MariaDB.
    #[value(alias = "mariadb")]
    Mysql,
    /// SQLite.
    Sqlite,
}

/// A part of the SQL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Part {
    /// The ledger's table.
    Ledger,
    /// The fence column.
    Column,
    /// The guard's triggers.
    Guard,
}

/// Reads `10s`, `250ms`, `1.5m`, `2h`, or a number of seconds.
///
/// # Errors
/// What is wrong with the text.
pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return Err("write a time like 10s, 250ms, 5m or 2h".into()),
    };
    let number: f64 = number.parse().map_err(|_| "write a time like 10s, 250ms, 5m or 2h")?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "that is longer than any time".into())
}

/// The codes, as they stand in the long help and in the manual.
fn exit_codes() -> String {
    let own = Exit::ALL.iter().map(|exit| format!("  {:>3}  {}\n", exit.code(), exit.meaning()));
    format!(
        "Exit codes:\n    0  done\n{}  128+n  signal n ended the program, or the wait for the lock\n\
         `redlock run` ends with the code of its program otherwise.",
        own.collect::<String>()
    )
}

/// Writes the manual: one page with all commands.
///
/// # Errors
/// If it cannot be written.
pub fn manual(into: &mut impl Write) -> io::Result<()> {
    let mut whole = Options::command();
    whole.build();
    let page = clap_mangen::Man::new(whole.clone());
    page.render_title(into)?;
    page.render_name_section(into)?;
    page.render_synopsis_section(into)?;
    page.render_description_section(into)?;
    page.render_options_section(into)?;
    for command in whole.get_subcommands().filter(|command| !command.is_hide_set()) {
        manual_of(command, &format!("redlock {}", command.get_name()), into)?;
    }
    page.render_extra_section(into)
}

fn manual_of(command: &clap::Command, name: &str, into: &mut impl Write) -> io::Result<()> {
    // What every command knows has been said.
    let own = command.clone().mut_args(|argument| {
        let is_global = argument.is_global_set();
        argument.hide(is_global)
    });
    writeln!(into, ".SH \"{}\"", name.to_uppercase())?;
    let page = clap_mangen::Man::new(own);
    let mut body = Vec::new();
    page.render_description_section(&mut body)?;
    page.render_options_section(&mut body)?;
    for line in String::from_utf8_lossy(&body).lines().filter(|line| !line.starts_with(".SH")) {
        writeln!(into, "{line}")?;
    }
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        manual_of(command, &format!("{name} {}", command.get_name()), into)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, millis) in [("10s", 10_000), ("250ms", 250), ("1.5m", 90_000), ("2h", 7_200_000), ("3", 3_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1s", "1 fortnight", "1e400s", "..s", "99999999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_manual_has_every_command_and_every_code() {
        let mut page = Vec::new();
        manual(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        for command in Options::command().get_subcommands() {
            assert!(page.contains(&format!("REDLOCK {}", command.get_name().to_uppercase())), "{}", command.get_name());
        }
        for exit in Exit::ALL {
            assert!(page.contains(&exit.code().to_string()), "{exit:?}");
        }
    }
}
