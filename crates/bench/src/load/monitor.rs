//! Listens to what a server is told, in its own words: `MONITOR`.
//!
//! Slows the server down, so nothing is measured meanwhile. Two questions are answered with it: what does our client send
//! for a lock (so that the floor can send the same, whatever that is), and which share of the commands that a server counts
//! came from clients rather than from within scripts.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::{BenchError, RedisServer};

/// How long a server that has nothing more to tell is listened to.
const QUIET: Duration = Duration::from_millis(50);

/// One command as a server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Heard {
    /// Whether a script ran it.
    pub(super) from_script: bool,
    /// Its words, the name first, in lower case.
    pub(super) words: Vec<String>,
}

/// An open ear.
#[derive(Debug)]
pub(super) struct Monitor {
    lines: BufReader<UnixStream>,
}

impl Monitor {
    pub(super) async fn of(server: &RedisServer) -> Result<Self, BenchError> {
        let open = async {
            let mut stream = UnixStream::connect(server.socket()).await?;
            stream.write_all(b"MONITOR\r\n").await?;
            let mut lines = BufReader::new(stream);
            lines.read_line(&mut String::new()).await?;
            Ok(Self { lines })
        };
        open.await.map_err(BenchError::io("listen to a server"))
    }

    /// Everything that was said since the last time, once nothing more comes.
    pub(super) async fn heard(&mut self) -> Result<Vec<Heard>, BenchError> {
        let mut heard = Vec::new();
        loop {
            let mut line = Vec::new();
            let read = tokio::time::timeout(QUIET, self.lines.read_until(b'\n', &mut line));
            match read.await {
                Err(_) | Ok(Ok(0)) => return Ok(heard),
                Ok(Ok(_)) => heard.extend(parse(&String::from_utf8_lossy(&line))),
                Ok(Err(error)) => return Err(BenchError::io("listen to a server")(error)),
            }
        }
    }
}

/// `1700000000.123456 [0 127.0.0.1:50000] "set" "a key" "\x00"`, or `[0 lua]` for a script's.
fn parse(line: &str) -> Option<Heard> {
    let (_, rest) = line.split_once(" [")?;
    let (from, words) = rest.split_once("] ")?;
    let mut words = words_of(words);
    words.first_mut()?.make_ascii_lowercase();
    Some(Heard { from_script: from.ends_with(" lua"), words })
}

fn words_of(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut characters = text.chars();
    while characters.any(|character| character == '"') {
        let mut word = String::new();
        while let Some(character) = characters.next().filter(|character| *character != '"') {
            match character {
                // What is escaped is no letter or digit, and nobody looks at it.
                '\\' => word.extend(characters.next()),
                other => word.push(other),
            }
        }
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_its_words_and_who_said_them() {
        let heard = parse("1.2 [0 127.0.0.1:5] \"EVALSHA\" \"ab\" \"1\" \"a \\\" key\" \"\"\n").unwrap();
        assert_eq!(heard.words, ["evalsha", "ab", "1", "a \" key", ""]);
        assert!(!heard.from_script);
        assert!(parse("1.2 [0 lua] \"set\" \"a\"").unwrap().from_script);
        assert_eq!(parse("OK\n"), None);
    }
}
