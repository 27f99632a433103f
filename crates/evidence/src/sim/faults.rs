//! Lets things go wrong, and right again. What may go wrong in a world was decided by its plan; here it happens.

use super::plan::{FaultKind, Millis, Sabotage};
use super::process::{Answer, Condition, Pause};
use super::random::mix;
use super::remote::Destination;
use super::world::{Call, Event, World};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A fault that lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    Cut { process: usize, server: usize },
    Frozen(usize),
    Down(usize),
    Paused(usize),
    Killed(usize),
}

/// What lies between a process and a server.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Changes when the connection does.
    pub(crate) connection: u64,
    /// Until when what the connection before it carried still arrives.
    pub(crate) old_until: Millis,
    pub(crate) slow_until: Millis,
    pub(crate) slow_by: Millis,
    pub(crate) latest_request: Millis,
    pub(crate) latest_answer: Millis,
    pub(crate) cut_there: bool,
    pub(crate) cut_back: bool,
    /// What arrives while it is cut, in order.
    pub(crate) held_requests: Vec<usize>,
    pub(crate) held_answers: Vec<(usize, Answer)>,
}

impl FaultKind {
    /// How it is told.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SlowLink => "SlowLink",
            Self::BrokenConnection => "BrokenConnection",
            Self::LostMessages => "LostMessages",
            Self::DuplicatedRequests => "DuplicatedRequests",
            Self::ReorderedMessages => "ReorderedMessages",
            Self::Partition => "Partition",
            Self::OneWayPartition => "OneWayPartition",
            Self::FrozenNode => "FrozenNode",
            Self::FrozenMajority => "FrozenMajority",
            Self::CrashWithMemory => "CrashWithMemory",
            Self::CrashWithoutMemory => "CrashWithoutMemory",
            Self::Flush => "Flush",
            Self::CalendarStep => "CalendarStep",
            Self::WildNodeClock => "WildNodeClock",
            Self::StoppedProcess => "StoppedProcess",
            Self::SuspendedMachine => "SuspendedMachine",
            Self::StandingClock => "StandingClock",
            Self::KilledProcess => "KilledProcess",
            Self::LostWakeUps => "LostWakeUps",
            Self::LossyStorage => "LossyStorage",
            Self::SlowStorage => "SlowStorage",
        }
    }
}

impl World {
    /// Plans the next fault of a kind.
    pub(crate) fn foresee(&mut self, kind: FaultKind) {
        if kind == FaultKind::WildNodeClock {
            self.faults.note(kind.name());
        }
        if let Some(tenths) = kind.gap_tenths() {
            let typical = self.plan.storm * tenths / 10;
            let gap = self.random.between(typical / 4, 2 * typical);
            self.schedule(gap, 0, Event::Begins(kind));
        }
    }

    pub(crate) fn begin(&mut self, kind: FaultKind) {
        if !self.storm {
            return;
        }
        let (process, server) = (self.random.index(self.plan.processes), self.random.index(self.plan.nodes));
        self.tell(|| format!("{kind:?} p{process} n{server}"));
        match kind {
            FaultKind::SlowLink => {
                let (lasts, by) =
                    (self.a_while(), self.random.between(5, 2 * super::plan::millis(self.plan.node_timeout)));
                let link = &mut self.links[process][server];
                (link.slow_until, link.slow_by) = (self.now + lasts, by);
                self.faults.note(kind.name());
            }
            FaultKind::BrokenConnection => {
                self.break_connection(process, server);
                self.faults.note(kind.name());
            }
            FaultKind::Partition | FaultKind::OneWayPartition => {
                let one_way = kind == FaultKind::OneWayPartition;
                let there = self.random.happens(500);
                // From a single node, or from most of them.
                let count = if self.random.happens(300) { self.plan.nodes.div_ceil(2) } else { 1 };
                for n in 0..count {
                    let server = (server + n) % self.plan.nodes;
                    let link = &mut self.links[process][server];
                    link.cut_there |= !one_way || there;
                    link.cut_back |= !one_way || !there;
                    let lasts = self.a_while();
                    self.schedule(lasts, 0, Event::Ends(Fault::Cut { process, server }));
                }
                self.faults.note(kind.name());
            }
            FaultKind::FrozenNode => {
                let lasts = self.a_while();
                self.freeze(server, lasts);
                self.faults.note(kind.name());
            }
            FaultKind::FrozenMajority => {
                let mut servers: Vec<usize> = (0..self.plan.nodes).collect();
                self.random.shuffle(&mut servers);
                servers.truncate(self.plan.nodes / 2 + 1 + self.random.index(2));
                let mut lasts = self.a_while();
                for server in servers {
                    lasts += self.random.below(self.plan.ttl_millis() / 2);
                    self.freeze(server, lasts);
                }
                self.faults.note(kind.name());
            }
            FaultKind::CrashWithMemory | FaultKind::CrashWithoutMemory => {
                if self.servers[server].up {
                    self.crash(server, kind == FaultKind::CrashWithoutMemory);
                    self.faults.note(kind.name());
                }
            }
            FaultKind::Flush => {
                self.servers[server].forget();
                self.faults.note(kind.name());
            }
            FaultKind::CalendarStep => {
                let by = Duration::from_millis(self.random.below(4 * self.plan.ttl_millis()));
                let clock = self.servers[server].memory.clock();
                if self.random.happens(500) {
                    clock.advance(by)
                } else {
                    clock.set(clock.now().saturating_sub(by))
                }
                self.faults.note(kind.name());
            }
            FaultKind::StoppedProcess | FaultKind::SuspendedMachine | FaultKind::StandingClock => {
                let how = match kind {
                    FaultKind::StoppedProcess => Pause::Stopped,
                    FaultKind::SuspendedMachine => Pause::Suspended,
                    _ => Pause::Standing,
                };
                let lasts = self.a_while();
                self.pause(process, lasts, how);
            }
            FaultKind::KilledProcess => {
                if !self.is_dead(process) {
                    self.kill(process);
                    self.faults.note(kind.name());
                }
            }
            FaultKind::LostMessages
            | FaultKind::DuplicatedRequests
            | FaultKind::ReorderedMessages
            | FaultKind::WildNodeClock
            | FaultKind::LostWakeUps
            | FaultKind::LossyStorage
            | FaultKind::SlowStorage => unreachable!("lasts throughout"),
        }
        self.foresee(kind);
    }

    /// How long a fault lasts: from a moment to longer than a lock lives.
    fn a_while(&mut self) -> Millis {
        let ttl = self.plan.ttl_millis();
        match self.random.below(3) {
            0 => self.random.between(1, 60),
            1 => self.random.between(20, ttl),
            _ => self.random.between(ttl / 2, (2 * ttl).min(self.plan.storm / 2)),
        }
    }

    pub(crate) fn end_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Cut { process, server } => self.heal(process, server),
            Fault::Frozen(server) => self.thaw(server),
            Fault::Down(server) => self.servers[server].up = true,
            Fault::Paused(number) => {
                if let Condition::Paused { until, .. } = self.processes[number].condition
                    && until <= self.now
                {
                    self.resume(number);
                }
            }
            Fault::Killed(number) => {
                if let Condition::Dead { until } = self.processes[number].condition
                    && until <= self.now
                {
                    self.be_reborn(number);
                }
            }
        }
    }

    fn resume(&mut self, number: usize) {
        let mail_first = self.random.happens(500);
        self.processes[number].resume(self.now, mail_first);
    }

    /// All faults stop, and whatever they have stopped goes on, in any order.
    pub(crate) fn calm_down(&mut self) {
        self.storm = false;
        self.tell(|| "calm".to_owned());
        let mut servers: Vec<usize> = (0..self.plan.nodes).collect();
        self.random.shuffle(&mut servers);
        for server in servers {
            self.servers[server].up = true;
            self.thaw(server);
            for process in 0..self.plan.processes {
                self.heal(process, server);
            }
        }
        for number in 0..self.plan.processes {
            match self.processes[number].condition {
                Condition::Paused { .. } => self.resume(number),
                Condition::Dead { .. } => self.be_reborn(number),
                Condition::Running => {}
            }
        }
        if self.sabotage == Sabotage::EndlessStorm {
            self.servers.iter_mut().take(self.plan.nodes / 2 + 1).for_each(|server| server.frozen = true);
        }
        self.winding_down.store(true, Ordering::Relaxed);
    }

    fn freeze(&mut self, server: usize, lasts: Millis) {
        self.servers[server].frozen = true;
        self.schedule(lasts, 0, Event::Ends(Fault::Frozen(server)));
    }

    /// What was sent to a frozen server is executed now: one connection after the other, each in its order.
    fn thaw(&mut self, server: usize) {
        self.servers[server].frozen = false;
        let mut backlog = Vec::from(std::mem::take(&mut self.servers[server].backlog));
        let connections = self.random.next();
        backlog.sort_by_key(|call| {
            let Call { process, connection, .. } = self.calls[*call];
            mix(connections ^ mix(connection ^ mix(u64::try_from(process).unwrap_or(0))))
        });
        for call in backlog {
            self.execute(call, false);
        }
    }

    fn heal(&mut self, process: usize, server: usize) {
        let link = &mut self.links[process][server];
        (link.cut_there, link.cut_back) = (false, false);
        let (requests, answers) = (std::mem::take(&mut link.held_requests), std::mem::take(&mut link.held_answers));
        for call in requests {
            self.arrive(call, false);
        }
        for (call, answer) in answers {
            self.answer(call, answer);
        }
    }

    /// A connection breaks. Of what was on its way, some is executed; of what comes back, nothing is heard.
    fn break_connection(&mut self, process: usize, server: usize) {
        let link = &mut self.links[process][server];
        link.connection += 1;
        (link.latest_request, link.latest_answer) = (0, 0);
        link.held_answers.clear();
        link.old_until = self.now + self.random.below(50);
        self.processes[process].shared.orders[server].fetch_add(1, Ordering::Relaxed);
        self.servers[server].hang_up(process);
        let incarnation = self.processes[process].shared.incarnation;
        let noticed = self.random.between(1, 20);
        self.schedule(noticed, 0, Event::HangsUp { server, process, incarnation });
        let open: Vec<usize> = (0..self.calls.len())
            .filter(|call| {
                let call = &self.calls[*call];
                (call.process, call.to) == (process, Destination::Server(server)) && !call.is_ended()
            })
            .collect();
        for call in open {
            self.schedule(noticed, 0, Event::Breaks { call });
        }
    }

    fn crash(&mut self, server: usize, forgets: bool) {
        let lasts = self.a_while();
        let node = &mut self.servers[server];
        node.up = false;
        node.backlog.clear();
        if forgets {
            node.forget();
        }
        for process in 0..self.plan.processes {
            self.break_connection(process, server);
        }
        self.schedule(lasts, 0, Event::Ends(Fault::Down(server)));
    }

    fn kill(&mut self, number: usize) {
        let lasts = self.a_while();
        self.processes[number].kill();
        self.let_loose(number);
        for server in 0..self.plan.nodes {
            self.break_connection(number, server);
        }
        let until = self.now + lasts;
        self.processes[number].condition = Condition::Dead { until };
        self.schedule_at(until, 0, Event::Ends(Fault::Killed(number)));
    }
}
