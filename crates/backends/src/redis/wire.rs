//! One stream to one server: commands go out in the order in which they were given, answers come back in the same order.
//!
//! What a general client does for every command (a channel, a task that is woken, a timer, bytes packed anew) costs more than
//! the rest of a lock. Here a command whose bytes are made already is written to the socket by whoever gives it, as long as
//! nothing is ahead of it; the task that reads answers is woken for commands only where they pile up, and then writes them
//! together. Parsing, and everything about commands, errors and TLS, stays with the redis crate.
//!
//! Below [`super::link`], which makes the stream and decides what a broken one means.

use redis::io::tcp::socket2::SockRef;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep};

/// The longest answer that is read. Ours are a few bytes, `INFO` a few thousand.
const ANSWER_LEN_MAX: usize = 16 << 20;

/// Room for answers to begin with.
const READ_LEN: usize = 8 << 10;

/// How deep answers nest at most; ours are lists of lists.
const DEPTH_MAX: usize = 8;

/// A connected stream, of either kind.
pub(super) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Stream {
    pub(super) async fn tcp(
        host: &str,
        port: u16,
        options: impl FnOnce(SockRef<'_>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect((host, port)).await?;
        options(SockRef::from(&stream))?;
        Ok(Self::Tcp(stream))
    }

    #[cfg(unix)]
    pub(super) async fn unix(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).await.map(Self::Unix)
    }

    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            #[cfg(unix)]
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(cx),
            #[cfg(unix)]
            Self::Unix(stream) => stream.poll_write_ready(cx),
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(buffer),
            #[cfg(unix)]
            Self::Unix(stream) => stream.try_read(buffer),
        }
    }

    /// Writes what fits; zero if nothing does at present.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.try_write(bytes),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            written => written,
        }
    }
}

/// A stream with its task; the task ends with the last clone of this.
#[derive(Clone)]
pub(super) struct Wire(Arc<Ends>);

struct Ends {
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Shared {
    stream: Stream,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// What could not be written yet.
    outgoing: Vec<u8>,
    /// The commands from the oldest one that somebody may still look at.
    slots: VecDeque<Slot>,
    /// The number of the first of them.
    first: u64,
    /// The number of the command that is answered next.
    next_answer: u64,
    /// Since when the server owes an answer: the first command after a silence, or the last answer.
    owing_since: Option<Instant>,
    /// Whether the task has a timer for that.
    is_timed: bool,
    task: Option<Waker>,
    /// Why nothing can be sent any more.
    closed: Option<(io::ErrorKind, Arc<str>)>,
}

enum Slot {
    /// Sent, or about to be.
    Waiting(Option<Waker>),
    /// The same, and nobody waits for the answer.
    Abandoned,
    Answered(RedisResult<Value>),
    /// Looked at.
    Over,
}

impl Wire {
    /// Takes a stream over. A server that owes an answer for longer than `answer_limit` is given up.
    pub(super) fn new(stream: Stream, answer_limit: Duration) -> Self {
        let shared = Arc::new(Shared { stream, queue: Mutex::default() });
        let driver = Driver {
            shared: Arc::clone(&shared),
            incoming: vec![0; READ_LEN],
            filled: 0,
            answer_limit,
            timer: Box::pin(tokio::time::sleep(answer_limit)),
        };
        let task = tokio::runtime::Handle::current().spawn(driver).abort_handle();
        Self(Arc::new(Ends { shared, task }))
    }

    /// Sends one command, given as bytes, and waits for its answer. The first poll sends it: afterwards the future may be
    /// dropped, and the command is carried out all the same.
    pub(super) fn send<'a>(&'a self, packed: &'a [u8]) -> Sending<'a> {
        Sending { shared: &self.0.shared, state: Sent::Not(packed) }
    }
}

/// The command was certainly not sent, because the stream had been closed before.
#[derive(Debug)]
pub(super) struct Closed(pub(super) RedisError);

pub(super) struct Sending<'a> {
    shared: &'a Shared,
    state: Sent<'a>,
}

enum Sent<'a> {
    Not(&'a [u8]),
    /// Under this number.
    As(u64),
    Over,
}

impl Future for Sending<'_> {
    type Output = Result<RedisResult<Value>, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut queue = self.shared.queue();
        let number = match self.state {
            Sent::Not(packed) => {
                if let Some(error) = queue.closed() {
                    self.state = Sent::Over;
                    return Poll::Ready(Err(Closed(error)));
                }
                let number = queue.push(cx.waker().clone());
                queue.write(&self.shared.stream, packed);
                let wake = queue.needs_task();
                drop(queue);
                if let Some(task) = wake {
                    task.wake();
                }
                self.state = Sent::As(number);
                return Poll::Pending;
            }
            Sent::As(number) => number,
            Sent::Over => panic!("the answer has been taken"),
        };
        match queue.take(number, cx.waker()) {
            Some(answer) => {
                self.state = Sent::Over;
                Poll::Ready(Ok(answer))
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if let Sent::As(number) = self.state {
            self.shared.queue().abandon(number);
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing can be sent any more, and whoever waits is told so.
    fn close(&self, why: &io::Error) {
        let mut wakers = Vec::new();
        {
            let mut queue = self.queue();
            queue.closed.get_or_insert_with(|| (why.kind(), why.to_string().into()));
            let error = || RedisError::from(io::Error::new(why.kind(), why.to_string()));
            for slot in &mut queue.slots {
                match slot {
                    Slot::Waiting(waker) => {
                        wakers.extend(waker.take());
                        *slot = Slot::Answered(Err(error()));
                    }
                    Slot::Abandoned => *slot = Slot::Over,
                    Slot::Answered(_) | Slot::Over => {}
                }
            }
            queue.next_answer = queue.first + queue.slots.len() as u64;
            queue.outgoing = Vec::new();
            queue.forget_what_is_over();
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Queue {
    fn closed(&self) -> Option<RedisError> {
        self.closed.as_ref().map(|(kind, why)| RedisError::from(io::Error::new(*kind, why.to_string())))
    }

    fn owes(&self) -> bool {
        self.next_answer < self.first + self.slots.len() as u64
    }

    fn push(&mut self, waker: Waker) -> u64 {
        if !self.owes() {
            self.owing_since = Some(Instant::now());
        }
        let number = self.first + self.slots.len() as u64;
        self.slots.push_back(Slot::Waiting(Some(waker)));
        number
    }

    /// Writes a command, at once if nothing is ahead of it.
    fn write(&mut self, stream: &Stream, packed: &[u8]) {
        // One that is alone goes out by itself. Where others wait for answers there is a crowd, and its commands are written
        // together by the task, which saves a system call for each.
        let alone = self.outgoing.is_empty() && self.next_answer + 1 == self.first + self.slots.len() as u64;
        // A stream that fails is closed by its task, which sees the same error.
        let written = if alone { stream.try_write(packed).unwrap_or(0) } else { 0 };
        self.outgoing.extend_from_slice(&packed[written..]);
    }

    /// The task, if it has something to do that it does not know of.
    fn needs_task(&mut self) -> Option<Waker> {
        if self.outgoing.is_empty() && self.is_timed { None } else { self.task.take() }
    }

    fn take(&mut self, number: u64, waker: &Waker) -> Option<RedisResult<Value>> {
        let slot = self.slot(number)?;
        match slot {
            Slot::Answered(_) => {
                let Slot::Answered(answer) = std::mem::replace(slot, Slot::Over) else { unreachable!("just seen") };
                self.forget_what_is_over();
                Some(answer)
            }
            Slot::Waiting(waiting) => {
                if !waiting.as_ref().is_some_and(|waiting| waiting.will_wake(waker)) {
                    *waiting = Some(waker.clone());
                }
                None
            }
            Slot::Abandoned | Slot::Over => None,
        }
    }

    fn abandon(&mut self, number: u64) {
        match self.slot(number) {
            Some(slot @ Slot::Waiting(_)) => *slot = Slot::Abandoned,
            Some(slot) => *slot = Slot::Over,
            None => {}
        }
        self.forget_what_is_over();
    }

    /// The next command in order is answered. `None` if none was sent.
    fn answer(&mut self, answer: RedisResult<Value>) -> Option<Option<Waker>> {
        if !self.owes() {
            return None;
        }
        let number = self.next_answer;
        self.next_answer += 1;
        self.owing_since = self.owes().then(Instant::now);
        let slot = self.slot(number)?;
        let waker = match slot {
            Slot::Waiting(waker) => {
                let waker = waker.take();
                *slot = Slot::Answered(answer);
                waker
            }
            Slot::Abandoned | Slot::Answered(_) | Slot::Over => {
                *slot = Slot::Over;
                None
            }
        };
        self.forget_what_is_over();
        Some(waker)
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        let position = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.slots.get_mut(position)
    }

    fn forget_what_is_over(&mut self) {
        while matches!(self.slots.front(), Some(Slot::Over)) {
            self.slots.pop_front();
            self.first += 1;
        }
    }
}

/// The task: reads answers, writes what piled up, and sees to it that the server does not owe an answer for too long.
struct Driver {
    shared: Arc<Shared>,
    incoming: Vec<u8>,
    /// How much of it has been read into.
    filled: usize,
    answer_limit: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.drive(cx) {
            Poll::Ready(why) => {
                self.shared.close(&why);
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Its runtime has ended, or it has itself: the first reason counts.
        self.shared.close(&io::Error::new(io::ErrorKind::BrokenPipe, "the connection's task has ended"));
    }
}

impl Driver {
    fn drive(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        {
            let mut queue = self.shared.queue();
            if !queue.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                queue.task = Some(cx.waker().clone());
            }
        }
        loop {
            if let Poll::Ready(Err(error)) = self.write(cx) {
                return Poll::Ready(error);
            }
            match self.shared.stream.poll_read_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending => return self.watch(cx),
            }
            match self.shared.stream.try_read(&mut self.incoming[self.filled..]) {
                Ok(0) => {
                    return Poll::Ready(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "the server closed the connection",
                    ));
                }
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Poll::Ready(error),
            }
            if let Err(error) = self.take_answers() {
                return Poll::Ready(error);
            }
        }
    }

    fn write(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut queue = self.shared.queue();
        let mut written = 0;
        while written < queue.outgoing.len() {
            match self.shared.stream.poll_write_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            }
            match self.shared.stream.try_write(&queue.outgoing[written..]) {
                Ok(more) => written += more,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        queue.outgoing.drain(..written);
        Poll::Ready(Ok(()))
    }

    /// Gives up a server that owes an answer for too long, and looks again when one may.
    fn watch(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut queue = self.shared.queue();
        loop {
            let Some(since) = queue.owing_since else {
                // Who sends the next command wakes us, unless the timer is on its way anyway.
                if !queue.is_timed || self.timer.as_mut().poll(cx).is_ready() {
                    queue.is_timed = false;
                }
                return Poll::Pending;
            };
            let deadline = since + self.answer_limit;
            if deadline <= Instant::now() {
                let why = format!("the server owed an answer for {:?}", self.answer_limit);
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            if !queue.is_timed {
                self.timer.as_mut().reset(deadline);
                queue.is_timed = true;
            }
            match self.timer.as_mut().poll(cx) {
                Poll::Pending => return Poll::Pending,
                // For an earlier command.
                Poll::Ready(()) => queue.is_timed = false,
            }
        }
    }

    fn take_answers(&mut self) -> io::Result<()> {
        let mut taken = 0;
        loop {
            let unread = &self.incoming[taken..self.filled];
            let (length, answer) = match answer(unread) {
                Ok(Some(answered)) => answered,
                Ok(None) => break,
                Err(Unreadable) => {
                    (unread.len(), Err(RedisError::from((ErrorKind::Parse, "not an answer in the protocol"))))
                }
            };
            let unreadable = matches!(&answer, Err(error) if error.kind() == ErrorKind::Parse);
            taken += length;
            let answered = self.shared.queue().answer(answer);
            let Some(waker) = answered else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the server answered what nobody asked"));
            };
            if let Some(waker) = waker {
                waker.wake();
            }
            if unreadable {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the server does not speak the protocol"));
            }
        }
        self.incoming.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        if self.filled == self.incoming.len() {
            if ANSWER_LEN_MAX <= self.filled {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the server's answer is too long"));
            }
            self.incoming.resize(2 * self.filled, 0);
        }
        Ok(())
    }
}

struct Unreadable;

/// The first answer in `bytes` with its length; `None` if it is not all there yet.
fn answer(bytes: &[u8]) -> Result<Option<(usize, RedisResult<Value>)>, Unreadable> {
    let Some(length) = length(bytes, 0)? else { return Ok(None) };
    let whole = &bytes[..length];
    // Most answers are counters and counts.
    let integer = match whole {
        [b':', digits @ .., b'\r', b'\n'] => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    let answer = match integer {
        Some(integer) => Ok(Value::Int(integer)),
        None => redis::parse_redis_value(whole).and_then(Value::extract_error),
    };
    Ok(Some((length, answer)))
}

/// How many bytes the first answer takes (RESP2, *Redis serialization protocol specification*); `None` if it is not all there.
fn length(bytes: &[u8], depth: usize) -> Result<Option<usize>, Unreadable> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    if !b":+-$*".contains(kind) || DEPTH_MAX < depth {
        return Err(Unreadable);
    }
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let line = bytes[1..end].strip_suffix(b"\r").ok_or(Unreadable)?;
    let header = end + 1;
    if b":+-".contains(kind) {
        return Ok(Some(header));
    }
    let count: i64 = std::str::from_utf8(line).ok().and_then(|count| count.parse().ok()).ok_or(Unreadable)?;
    let Ok(count) = usize::try_from(count) else {
        // Nothing at all.
        return if count == -1 { Ok(Some(header)) } else { Err(Unreadable) };
    };
    if ANSWER_LEN_MAX < count {
        return Err(Unreadable);
    }
    if *kind == b'$' {
        let whole = header + count + 2;
        return Ok((whole <= bytes.len()).then_some(whole));
    }
    let mut whole = header;
    for _ in 0..count {
        match length(&bytes[whole..], depth + 1)? {
            Some(element) => whole += element,
            None => return Ok(None),
        }
    }
    Ok(Some(whole))
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("under_way", &self.0.shared.queue().slots.len()).finish()
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use futures_util::future::join_all;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const LONG: Duration = Duration::from_secs(3600);

    fn pair(answer_limit: Duration) -> (Wire, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Wire::new(Stream::Unix(ours), answer_limit), theirs)
    }

    async fn expect(server: &mut UnixStream, bytes: &[u8]) {
        let mut read = vec![0; bytes.len()];
        server.read_exact(&mut read).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&read), String::from_utf8_lossy(bytes));
    }

    fn text(value: &str) -> Value {
        Value::BulkString(value.into())
    }

    #[tokio::test]
    async fn answers_are_given_to_commands_in_their_order() {
        let (wire, mut server) = pair(LONG);
        let commands: Vec<String> = (0..100).map(|n| format!("command {n}\n")).collect();
        let serve = async {
            for (n, command) in commands.iter().enumerate() {
                expect(&mut server, command.as_bytes()).await;
                server.write_all(format!(":{n}\r\n").as_bytes()).await.unwrap();
            }
        };
        let (answers, ()) = tokio::join!(join_all(commands.iter().map(|command| wire.send(command.as_bytes()))), serve);
        for (n, answer) in (0..).zip(answers) {
            assert_eq!(answer.unwrap().unwrap(), Value::Int(n));
        }
    }

    #[tokio::test]
    async fn a_command_that_nobody_waits_for_is_sent_and_its_answer_is_nobodys() {
        let (wire, mut server) = pair(LONG);
        assert!(wire.send(b"first").now_or_never().is_none());
        let mut second = Box::pin(wire.send(b"second"));
        assert!((&mut second).now_or_never().is_none());
        expect(&mut server, b"firstsecond").await;
        server.write_all(b":1\r\n:2\r\n").await.unwrap();
        assert_eq!(second.await.unwrap().unwrap(), Value::Int(2));
    }

    #[tokio::test]
    async fn more_than_fits_into_the_socket_is_sent_when_there_is_room() {
        let (wire, mut server) = pair(LONG);
        let long = vec![b'x'; 8 << 20];
        let serve = async {
            expect(&mut server, &long).await;
            expect(&mut server, b"short").await;
            server.write_all(b"+OK\r\n$5\r\nshort\r\n").await.unwrap();
        };
        let (first, second, ()) = tokio::join!(wire.send(&long), wire.send(b"short"), serve);
        assert_eq!(first.unwrap().unwrap(), Value::Okay);
        assert_eq!(second.unwrap().unwrap(), text("short"));
    }

    #[tokio::test]
    async fn whoever_waits_is_told_when_the_server_goes_and_later_commands_are_not_sent() {
        let (wire, mut server) = pair(LONG);
        let mut waiting = Box::pin(wire.send(b"command"));
        assert!((&mut waiting).now_or_never().is_none());
        expect(&mut server, b"command").await;
        drop(server);
        assert!(waiting.await.unwrap().unwrap_err().is_io_error());
        let Closed(error) = wire.send(b"another").await.unwrap_err();
        assert!(error.is_io_error());
    }

    #[tokio::test]
    async fn a_server_that_owes_an_answer_for_too_long_is_given_up_and_a_silent_idle_one_is_not() {
        let (wire, mut server) = pair(Duration::from_millis(100));
        let (answer, ()) = tokio::join!(wire.send(b"1"), async { server.write_all(b":1\r\n").await.unwrap() });
        assert_eq!(answer.unwrap().unwrap(), Value::Int(1));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let (answer, ()) = tokio::join!(wire.send(b"2"), async { server.write_all(b":2\r\n").await.unwrap() });
        assert_eq!(answer.unwrap().unwrap(), Value::Int(2), "nothing was owed meanwhile");
        let error = wire.send(b"3").await.unwrap().unwrap_err();
        assert!(error.is_timeout(), "{error}");
    }

    #[tokio::test]
    async fn an_answer_that_nobody_asked_for_ends_the_connection() {
        let (wire, mut server) = pair(LONG);
        server.write_all(b":1\r\n:2\r\n").await.unwrap();
        // The first of them may still be taken for the answer to this.
        let _ = wire.send(b"?").await;
        assert!(wire.send(b"?").await.is_err());
    }

    #[tokio::test]
    async fn what_is_not_the_protocol_is_told_as_such() {
        let (wire, mut server) = pair(LONG);
        let answer = tokio::join!(wire.send(b"PING\r\n"), async {
            expect(&mut server, b"PING\r\n").await;
            server.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        });
        assert_eq!(answer.0.unwrap().unwrap_err().kind(), ErrorKind::Parse);
    }

    #[tokio::test]
    async fn an_error_of_the_server_is_an_answer() {
        let (wire, mut server) = pair(LONG);
        let (answer, ()) =
            tokio::join!(wire.send(b"?"), async { server.write_all(b"-NOSCRIPT no such script\r\n").await.unwrap() });
        assert_eq!(answer.unwrap().unwrap_err().code(), Some("NOSCRIPT"));
        assert!(wire.send(b"?").now_or_never().is_none(), "it goes on");
    }

    fn any_answer() -> impl Strategy<Value = Vec<u8>> {
        let line = "[ -~]{0,12}";
        let leaf = prop_oneof![
            any::<i64>().prop_map(|n| format!(":{n}\r\n").into_bytes()),
            line.prop_map(|text| format!("+{text}\r\n").into_bytes()),
            Just(b"$-1\r\n".to_vec()),
            any::<Vec<u8>>().prop_map(|bytes| [format!("${}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat()),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            let list = |parts: Vec<Vec<u8>>| [format!("*{}\r\n", parts.len()).into_bytes(), parts.concat()].concat();
            proptest::collection::vec(inner, 0..4).prop_map(list)
        })
    }

    proptest! {
        /// However an answer is cut, it is one when it is all there and none before, and what follows is left alone.
        #[test]
        fn an_answer_is_as_long_as_it_is(bytes in any_answer(), after in any::<Vec<u8>>()) {
            for cut in 0..bytes.len() {
                prop_assert!(matches!(answer(&bytes[..cut]), Ok(None)), "{cut} of {}", bytes.len());
            }
            let Ok(Some((length, value))) = answer(&[&bytes[..], &after].concat()) else {
                return Err(TestCaseError::fail("it is all there"));
            };
            prop_assert_eq!(length, bytes.len());
            prop_assert_eq!(value.unwrap(), redis::parse_redis_value(&bytes).unwrap());
        }

        /// Whatever comes in, nothing panics, and nothing is taken for longer than it is.
        #[test]
        fn no_bytes_are_too_strange(bytes in any::<Vec<u8>>()) {
            if let Ok(Some((length, _))) = answer(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
