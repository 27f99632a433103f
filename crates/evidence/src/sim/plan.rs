//! What a seed decides before anything happens: how large the world is, which kinds of fault it knows, and so which
//! promises may be held against it.

use super::random::Random;
use std::time::Duration;

/// Time in a simulated world: milliseconds since it began, the resolution of tokio's timers.
pub(crate) type Millis = u64;

/// What can go wrong. The name is how it is told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FaultKind {
    /// All messages of one link take much longer for a while.
    SlowLink,
    /// A connection breaks: what is on its way is executed or not, and no answer comes back.
    BrokenConnection,
    /// A link on which single messages are lost.
    LostMessages,
    /// A link on which a request may be executed twice.
    DuplicatedRequests,
    /// A link that does not keep the order of messages.
    ReorderedMessages,
    /// Nothing passes between a process and a node.
    Partition,
    /// Nothing passes in one direction.
    OneWayPartition,
    /// A node stops answering; what it is sent is executed when it goes on.
    FrozenNode,
    /// Most nodes stop, and go on one by one in random order.
    FrozenMajority,
    /// A node dies and comes back with everything it knew.
    CrashWithMemory,
    /// A node dies and comes back empty.
    CrashWithoutMemory,
    /// A node is emptied while it runs.
    Flush,
    /// A node's calendar is set forward or back.
    CalendarStep,
    /// A node's clock runs too fast or too slow for the drift allowance.
    WildNodeClock,
    /// A process does nothing for a while; its clocks go on.
    StoppedProcess,
    /// The machine of a process sleeps: its timers stand still, its clock goes on.
    SuspendedMachine,
    /// As above, and its clock stands still too: the one thing a clock here must not do.
    StandingClock,
    /// A process is killed, and another one started in its place.
    KilledProcess,
    /// Wake-ups for waiters get lost.
    LostWakeUps,
    /// The storage loses requests and answers.
    LossyStorage,
    /// Some requests reach the storage long after they were sent, and out of order.
    SlowStorage,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::SlowLink,
        Self::BrokenConnection,
        Self::LostMessages,
        Self::DuplicatedRequests,
        Self::ReorderedMessages,
        Self::Partition,
        Self::OneWayPartition,
        Self::FrozenNode,
        Self::FrozenMajority,
        Self::CrashWithMemory,
        Self::CrashWithoutMemory,
        Self::Flush,
        Self::CalendarStep,
        Self::WildNodeClock,
        Self::StoppedProcess,
        Self::SuspendedMachine,
        Self::StandingClock,
        Self::KilledProcess,
        Self::LostWakeUps,
        Self::LossyStorage,
        Self::SlowStorage,
    ];

    /// In how many of a thousand worlds it may happen. Those that void a promise's assumptions are rarer, so that every
    /// promise is held against most worlds.
    fn worlds_per_mille(self) -> u64 {
        match self {
            Self::CrashWithoutMemory | Self::Flush | Self::CalendarStep => 80,
            Self::WildNodeClock | Self::StandingClock => 60,
            Self::DuplicatedRequests => 100,
            Self::LostMessages | Self::ReorderedMessages => 150,
            Self::KilledProcess | Self::FrozenMajority => 250,
            _ => 400,
        }
    }

    /// The typical time between two of them, in tenths of the storm; `None` for what lasts throughout.
    pub(crate) fn gap_tenths(self) -> Option<u64> {
        match self {
            Self::SlowLink | Self::BrokenConnection | Self::Partition | Self::OneWayPartition => Some(1),
            Self::StoppedProcess | Self::SuspendedMachine | Self::FrozenNode => Some(1),
            Self::FrozenMajority | Self::CrashWithMemory | Self::StandingClock => Some(3),
            Self::CrashWithoutMemory | Self::Flush | Self::CalendarStep | Self::KilledProcess => Some(4),
            Self::LostMessages | Self::DuplicatedRequests | Self::ReorderedMessages => None,
            Self::WildNodeClock | Self::LostWakeUps | Self::LossyStorage | Self::SlowStorage => None,
        }
    }
}

/// What is broken on purpose, to show that the simulation would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sabotage {
    /// Nothing.
    #[default]
    None,
    /// The storage takes whatever it is given, under whatever token.
    FenceOff,
    /// Node clocks run three times too fast, and no allowance is made for it when the verdict is found.
    WildClocks,
    /// Nodes forget everything now and then, tokens do not follow the nodes' time, and no allowance is made for it.
    Amnesia,
    /// Pauses of processes are not made allowance for when the verdict is found.
    SecretPauses,
    /// Nodes say that they have released, and have not.
    HoardingNodes,
    /// Most nodes stay frozen when the storm is over.
    EndlessStorm,
    /// Nodes forget everything now and then, the crash-recovery guard is off, and the verdict takes it for on.
    GuardOff,
}

impl Sabotage {
    /// All of them, by the names under which they are asked for.
    pub const ALL: [(&str, Self); 7] = [
        ("fence-off", Self::FenceOff),
        ("wild-clocks", Self::WildClocks),
        ("amnesia", Self::Amnesia),
        ("secret-pauses", Self::SecretPauses),
        ("hoarding-nodes", Self::HoardingNodes),
        ("endless-storm", Self::EndlessStorm),
        ("guard-off", Self::GuardOff),
    ];
}

/// How messages travel between a process and a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    /// The typical time of one way.
    pub(crate) typical: Millis,
    /// How much longer the longest ways are.
    pub(crate) stretch: u64,
    /// Whether messages keep their order, as on one connection.
    pub(crate) ordered: bool,
    pub(crate) lost_per_mille: u64,
    pub(crate) doubled_per_mille: u64,
}

/// A world before it begins.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) processes: usize,
    pub(crate) tasks_per_process: usize,
    pub(crate) resources: usize,
    pub(crate) ttl: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) clock_floor: bool,
    /// Whether all clients have the crash-recovery guard on.
    pub(crate) guarded: bool,
    /// How long things go wrong.
    pub(crate) storm: Millis,
    pub(crate) links: Links,
    /// How much each process's and node's clock is fast, in parts per million.
    pub(crate) process_ppm: Vec<i64>,
    pub(crate) node_ppm: Vec<i64>,
    pub(crate) faults: Vec<FaultKind>,
    pub(crate) assumed: Assumptions,
}

/// What the promises need, as far as this world grants it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumptions {
    /// P2: no node forgets a live lock, or the crash-recovery guard is on (P6); and clocks stay within the allowance.
    pub(crate) exclusion: bool,
    /// P1: counters survive, or the crash-recovery guard is on (P6), or the nodes' clocks agree. Grants that are further apart
    /// than this are to be in order.
    pub(crate) order_beyond: Option<Millis>,
    /// P5: no request takes effect twice, and keys end with their ttl.
    pub(crate) nothing_left: bool,
}

/// Clocks that agree may still be read so late by one client and so early by another.
const CALENDARS_AGREE_WITHIN: Millis = 5_000;

/// What came later than the rest is drawn apart from it: worlds without it are what they were, among them those of the seeds
/// that have found something.
const SLOW_STORAGE_APART: u64 = 0x5105;
const GUARD_APART: u64 = 0x6060;

/// Half of the drift that is allowed for, less a little: two clocks may run apart by both of theirs.
const MODERATE_PPM: u64 = 4_500;

impl Plan {
    pub(crate) fn of(seed: u64, sabotage: Sabotage) -> Self {
        let mut random = Random::new(super::random::mix(seed ^ 0x5EED));
        let nodes = random.pick(&[1, 3, 3, 3, 5, 5]);
        let processes = random.pick(&[2, 3, 3, 4]);
        let ttl = random.pick(&[400, 700, 1_500, 3_000, 6_000, 20_000]);
        let node_timeout = random.pick(&[20, 50, 50, 100]).min(ttl / 10);
        let kinds = FaultKind::ALL.into_iter().filter(|kind| *kind != FaultKind::SlowStorage);
        let mut faults: Vec<FaultKind> = kinds.filter(|kind| random.happens(kind.worlds_per_mille())).collect();
        if Random::new(super::random::mix(seed ^ SLOW_STORAGE_APART)).happens(FaultKind::SlowStorage.worlds_per_mille())
        {
            faults.push(FaultKind::SlowStorage);
        }
        let amnesia = [FaultKind::CrashWithoutMemory, FaultKind::Flush];
        match sabotage {
            Sabotage::None
            | Sabotage::FenceOff
            | Sabotage::SecretPauses
            | Sabotage::HoardingNodes
            | Sabotage::EndlessStorm => {}
            Sabotage::WildClocks => faults.push(FaultKind::WildNodeClock),
            Sabotage::Amnesia | Sabotage::GuardOff => {
                faults.extend(amnesia.iter().filter(|kind| !faults.contains(kind)).collect::<Vec<_>>())
            }
        }
        let has = |kind| faults.contains(&kind);
        let ordered = !has(FaultKind::ReorderedMessages) && !has(FaultKind::DuplicatedRequests);
        let links = Links {
            typical: random.pick(&[1, 1, 2, 4]),
            stretch: random.pick(&[2, 5, 20]),
            ordered: ordered && !has(FaultKind::LostMessages),
            lost_per_mille: if has(FaultKind::LostMessages) { random.between(5, 120) } else { 0 },
            doubled_per_mille: if has(FaultKind::DuplicatedRequests) { random.between(5, 80) } else { 0 },
        };
        // Worlds whose calendars agree show that order survives the loss of counters.
        let in_step = random.happens(500);
        let mut moderate = |count: usize| -> Vec<i64> {
            let draw = |_| if in_step { 0 } else { signed(random.between(0, 2 * MODERATE_PPM)) - signed(MODERATE_PPM) };
            (0..count).map(draw).collect()
        };
        let (process_ppm, mut node_ppm) = (moderate(processes), moderate(nodes));
        if has(FaultKind::WildNodeClock) {
            let wild =
                if sabotage == Sabotage::WildClocks { &[2_000_000, 2_000_000][..] } else { &[-400_000, 500_000] };
            for ppm in &mut node_ppm {
                if sabotage == Sabotage::WildClocks || random.happens(500) {
                    *ppm = random.pick(wild);
                }
            }
        }
        let clock_floor = sabotage != Sabotage::Amnesia && random.happens(700);
        let forgets = amnesia.iter().any(|kind| has(*kind));
        // It is there for nodes that forget, and has to be no hindrance where none does.
        let guarded = Random::new(super::random::mix(seed ^ GUARD_APART)).happens(if forgets { 600 } else { 150 });
        let guarded = guarded && sabotage != Sabotage::Amnesia || sabotage == Sabotage::GuardOff;
        let forgets = forgets && !guarded;
        let steps = has(FaultKind::CalendarStep) || has(FaultKind::WildNodeClock);
        let clocks_go_on = !has(FaultKind::StandingClock);
        let order_beyond = match (forgets, in_step && !steps && clocks_go_on && clock_floor) {
            (false, _) => Some(0),
            (true, true) => Some(CALENDARS_AGREE_WITHIN),
            (true, false) => None,
        };
        let assumed = Assumptions {
            exclusion: sabotage == Sabotage::WildClocks || !forgets && !steps && clocks_go_on,
            order_beyond: if sabotage == Sabotage::Amnesia { Some(0) } else { order_beyond },
            nothing_left: !has(FaultKind::DuplicatedRequests) && !steps && clocks_go_on,
        };
        Self {
            nodes,
            processes,
            tasks_per_process: random.pick(&[1, 1, 2, 3]),
            resources: random.pick(&[1, 1, 2, 3]),
            ttl: Duration::from_millis(ttl),
            node_timeout: Duration::from_millis(node_timeout),
            clock_floor,
            guarded: guarded && sabotage != Sabotage::GuardOff,
            storm: (ttl * random.between(4, 10)).clamp(4_000, 20_000),
            links,
            process_ppm,
            node_ppm,
            faults,
            assumed,
        }
    }

    pub(crate) fn has(&self, kind: FaultKind) -> bool {
        self.faults.contains(&kind)
    }

    /// The longest ttl that anybody asks for.
    pub(crate) fn longest_ttl(&self) -> Duration {
        2 * self.ttl
    }

    pub(crate) fn ttl_millis(&self) -> Millis {
        millis(self.ttl)
    }
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
