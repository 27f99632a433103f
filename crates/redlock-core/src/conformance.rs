//! The conformance kit: checks, promise by promise, that a node keeps the contract of [`LockNode`].
//!
//! For authors of nodes. Say how to reach your node in a [`Fixture`], and either call [`check_all`], or let
//! [`conformance_tests!`](crate::conformance_tests) make one test of each promise. A promise that is broken is named,
//! with its rule and what the node did instead. What a node does not claim (to be inspected, to keep an order) is told
//! as *not offered*, and is not held against it.
//!
//! ```
//! # async fn example(fixture: impl redlock_core::conformance::Fixture) {
//! let conformance = redlock_core::conformance::check_all(&fixture).await;
//! println!("{conformance}"); // how many promises are kept and how many not offered, and which
//! conformance.assert_kept();
//! # }
//! ```
//!
//! Every promise works under a key prefix of its own, so many may run against one server at once. Nothing here sleeps for
//! a length that was guessed: a lock's end is awaited by asking, and judged by a clock that was read before the question.
//!
//! What it cannot see: whether the node is independent of the others of its quorum, whether it remembers what it promised
//! when it restarts, and rules about what no caller can provoke.

mod stage;
mod acquiring;
mod counting;
mod raising;
mod extending;
mod releasing;
mod expiring;
mod crowd;
mod cancelled;
mod troubled;
mod lines;
mod offered;

use self::stage::{Deviation, Outcome, Stage};
use crate::clock::{Clock, SystemClock};
use crate::node::LockNode;
use crate::resource::KeyPrefix;
use async_trait::async_trait;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// After this time a promise that has not come to an end is broken: some call, or some lock, does not end.
const PROMISE_LIMIT: Duration = Duration::from_secs(120);

/// How to reach the node that is to be checked, and what only its author can do to it.
///
/// What is not there has a default that leaves out what needs it.
///
/// Panic where the server cannot be reached: a check that could not be made must not look like one that was passed.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A connection to the one node that is checked; each call another one, if there is such a thing.
    async fn connect(&self) -> Arc<dyn LockNode>;

    /// Lets time pass, on the node and on [`Fixture::clock`]: at least `duration`.
    ///
    /// A node whose clock a test can move is checked in no time at all.
    async fn let_pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// The clock by which the ends of locks are judged; to be moved together with the node's own.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    /// How much later than its ttl a lock may end, for a node that rounds up or sweeps now and then. An early end has no
    /// excuse but the drift allowance of the clocks.
    fn lateness(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Cuts all connections that [`Fixture::connect`] has made, as a server that closes them does. `false` if there are none
    /// or it cannot be done.
    async fn disconnect(&self) -> bool {
        false
    }

    /// Keeps the node's other end from answering, though its connections stand; with `false`, lets it answer again. `false`
    /// if it cannot be done.
    ///
    /// Only one promise asks for it. Promises that run beside it on the same server are disturbed.
    async fn silence(&self, silent: bool) -> bool {
        let _ = silent;
        false
    }

    /// Removes what a promise leaves under its prefix. The locks have been released by then; counters are left.
    async fn clean_up(&self, prefix: &KeyPrefix) {
        let _ = prefix;
    }
}

/// A rule of the contract, and how it is checked.
#[derive(Clone, Copy)]
pub struct Promise {
    /// The name of the promise, which is that of the function that checks it.
    pub name: &'static str,
    /// The rule in words.
    pub rule: &'static str,
    check: for<'a> fn(&'a Stage<'a>) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>,
}

impl Promise {
    /// Checks this promise, and takes back the locks that it left.
    ///
    /// # Errors
    /// [`Broken`] if the node does not keep it.
    ///
    /// # Cancel safety
    /// Locks of the check may be left on the node, under a prefix that nobody else uses.
    pub async fn check(&self, fixture: &dyn Fixture) -> Result<Kept, Broken> {
        let broken = |instead| Broken::new(self.name, self.rule, instead);
        let stage = Stage::open(fixture).await;
        let outcome = tokio::time::timeout(PROMISE_LIMIT, (self.check)(&stage)).await;
        // What was left by a node that does not answer is left for good.
        let _ = tokio::time::timeout(PROMISE_LIMIT, stage.close()).await;
        match outcome {
            Ok(Ok(())) => Ok(Kept::Yes),
            Ok(Err(Deviation::NotOffered(why))) => Ok(Kept::NotOffered(why)),
            Ok(Err(Deviation::Broken(instead))) => Err(broken(instead)),
            Err(_) => Err(broken(format!("the check did not come to an end within {PROMISE_LIMIT:?}"))),
        }
    }
}

impl fmt::Debug for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Promise").field("name", &self.name).field("rule", &self.rule).finish_non_exhaustive()
    }
}

/// A promise that was not broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kept {
    /// The node keeps it.
    Yes,
    /// The node, or the fixture, does not claim to, as it says here.
    NotOffered(String),
}

/// A promise that the node does not keep.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{promise}: {rule}; instead, {instead}")]
#[non_exhaustive]
pub struct Broken {
    /// The name of the promise.
    pub promise: &'static str,
    /// The rule in words.
    pub rule: &'static str,
    /// What the node did instead.
    pub instead: String,
}

impl Broken {
    /// For kits that check other promises.
    #[must_use]
    pub fn new(promise: &'static str, rule: &'static str, instead: impl Into<String>) -> Self {
        Self { promise, rule, instead: instead.into() }
    }
}

/// What came of all promises.
#[derive(Clone, Debug)]
#[must_use]
pub struct Conformance(Vec<(&'static str, Result<Kept, Broken>)>);

impl FromIterator<(&'static str, Result<Kept, Broken>)> for Conformance {
    fn from_iter<I: IntoIterator<Item = (&'static str, Result<Kept, Broken>)>>(verdicts: I) -> Self {
        Self(verdicts.into_iter().collect())
    }
}

impl Conformance {
    /// What came of each promise, by its name.
    pub fn iter(&self) -> impl Iterator<Item = &(&'static str, Result<Kept, Broken>)> {
        self.0.iter()
    }

    /// The promises that the node keeps.
    pub fn kept(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().filter(|(_, verdict)| *verdict == Ok(Kept::Yes)).map(|(name, _)| *name)
    }

    /// The promises that the node does not claim to keep, each with the reason.
    pub fn not_offered(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().filter_map(|(name, verdict)| match verdict {
            Ok(Kept::NotOffered(why)) => Some((*name, why.as_str())),
            _ => None,
        })
    }

    /// The promises that the node breaks.
    pub fn broken(&self) -> impl Iterator<Item = &Broken> {
        self.0.iter().filter_map(|(_, verdict)| verdict.as_ref().err())
    }

    /// Makes sure that nothing is broken.
    ///
    /// # Panics
    /// With all that was found, if a promise is broken.
    pub fn assert_kept(&self) {
        assert!(self.broken().next().is_none(), "the node does not keep the contract: {self}");
    }
}

impl fmt::Display for Conformance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (not_offered, broken) = (self.not_offered().count(), self.broken().count());
        write!(f, "{} promises kept, {not_offered} not offered", self.kept().count())?;
        if 0 < broken {
            write!(f, ", {broken} broken")?;
        }
        for (name, why) in self.not_offered() {
            write!(f, "\n  not offered  {name}: {why}")?;
        }
        for broken in self.broken() {
            write!(f, "\n  broken       {broken}")?;
        }
        Ok(())
    }
}

/// Checks all [`PROMISES`], one after the other.
///
/// # Cancel safety
/// Locks of the promise that was being checked may be left on the node, under a prefix that nobody else uses.
pub async fn check_all(fixture: &dyn Fixture) -> Conformance {
    let mut verdicts = Vec::with_capacity(PROMISES.len());
    for promise in PROMISES {
        verdicts.push((promise.name, promise.check(fixture).await));
    }
    verdicts.into_iter().collect()
}

/// Makes of one list: a public function per promise, the table of all, and the macro that makes a test of each.
macro_rules! promises {
    ($dollar:tt $($module:ident { $($name:ident: $rule:literal,)* })*) => {
        /// All promises, in the order in which [`check_all`] checks them.
        pub const PROMISES: &[Promise] = &[$($(
            Promise { name: stringify!($name), rule: $rule, check: |stage| Box::pin($module::$name(stage)) },
        )*)*];

        $($(
            #[doc = concat!("Checks that ", $rule, ".")]
            ///
            /// # Errors
            /// [`Broken`] if the node does not keep it.
            ///
            /// # Cancel safety
            /// Locks of the check may be left on the node, under a prefix that nobody else uses.
            pub async fn $name(fixture: &dyn Fixture) -> Result<Kept, Broken> {
                let promise =
                    Promise { name: stringify!($name), rule: $rule, check: |stage| Box::pin($module::$name(stage)) };
                promise.check(fixture).await
            }
        )*)*

        /// Makes one test of each promise of a node, for a test file or a module of one.
        ///
        /// The expression makes the [`Fixture`](crate::conformance::Fixture); it is evaluated anew in each test, and may
        /// await. Tests run on tokio's runtime with two threads, so a dev-dependency on tokio with the features `macros` and
        /// `rt-multi-thread` is needed.
        ///
        /// ```text
        /// redlock_core::conformance_tests!(MyFixture::start().await);
        /// ```
        #[macro_export]
        macro_rules! conformance_tests {
            ($dollar fixture:expr) => {
                $($(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        let fixture = $dollar fixture;
                        match $crate::conformance::$name(&fixture).await {
                            Ok($crate::conformance::Kept::Yes) => {}
                            Ok($crate::conformance::Kept::NotOffered(why)) => {
                                ::std::println!("not offered: {why}");
                            }
                            Err(broken) => ::std::panic!("{broken}"),
                        }
                    }
                )*)*
            };
        }
    };
}

promises! {
    $
    acquiring {
        a_free_resource_is_granted:
            "an acquire of resources that are free is granted",
        a_held_resource_is_refused_and_nothing_changes:
            "an acquire of what another owner holds is refused, and changes neither lock nor counter",
        the_holder_is_refused_as_well:
            "a resource that the same owner already holds is not free",
        one_that_is_held_refuses_all:
            "an acquire takes all resources or none, and touches no counter if it takes none",
        as_many_as_a_lock_may_cover_are_granted:
            "an acquire takes as many resources at once as a lock may cover",
        a_refusal_tells_what_is_in_the_way:
            "a refusal names the first resource that is not free, its holder and the remaining time, or says that it does \
             not know",
        names_are_told_apart:
            "different names and different prefixes are different resources, whatever characters they have",
        two_connections_see_one_node:
            "what one connection has taken, every other one sees",
    }
    counting {
        a_grant_answers_one_above_floor_and_counter:
            "a grant sets the counter to 1 + max(floor, counter) and answers it",
        several_resources_get_one_common_counter:
            "a grant of several resources sets all their counters to one common value 1 + max(floor, counters)",
        a_counter_outlives_release:
            "a counter outlives the lock's release; it only ever grows",
        a_counter_outlives_expiry:
            "a counter outlives the lock's expiry; it only ever grows",
        counters_are_exact_up_to_the_highest_token:
            "counters are exact up to the highest token, 2^53 - 1",
    }
    raising {
        the_holder_raises_the_counter:
            "a raise by the holder sets the counter, and answers where it stands",
        a_raise_never_lowers:
            "a raise sets the counter to max(counter, to), so never to less than it was",
        only_the_holder_raises:
            "a raise by somebody who does not hold the resource is answered \"not owner\" and changes nothing",
        a_raise_needs_all_resources:
            "a raise changes nothing unless its owner holds all of the resources",
        a_raise_answers_the_greatest_counter:
            "a raise of several resources raises each and answers the greatest of their counters",
    }
    extending {
        an_extension_prolongs:
            "an extension gives the holder the whole ttl from then on",
        an_extension_sets_and_never_adds:
            "an extension sets the remaining time, and never adds to it",
        an_extension_revives_nothing:
            "an extension never brings back a lock that is gone",
        only_the_holder_extends:
            "an extension by somebody who does not hold the resource changes nothing",
        an_extension_needs_all_resources:
            "an extension changes nothing unless its owner holds all of the resources",
        an_extension_touches_no_counter:
            "an extension never touches a counter",
        many_extensions_are_answered_each_in_their_order:
            "extending many answers each ownership as if it had been extended alone, in their order",
    }
    releasing {
        a_release_frees:
            "what its owner has released is free",
        a_second_release_finds_it_gone:
            "a release is idempotent, and tells that there was nothing left to free",
        only_the_holder_releases:
            "a release never frees what another owner holds",
        a_repeated_release_does_not_touch_the_next_holder:
            "a release that is repeated after the next owner was granted does not touch that owner's lock",
        a_release_frees_what_is_held_of_several:
            "a release frees those of the resources that the owner holds, and no others",
    }
    expiring {
        a_lock_does_not_end_early:
            "a lock is held for its ttl from the moment at which the node executes the acquire",
        a_lock_ends_after_its_ttl:
            "a lock ends by itself after its ttl, on all resources",
        what_has_expired_is_nobodys:
            "the owner of a lock that has expired holds nothing: no raise, no extension, nothing to release",
        a_late_release_does_not_touch_the_next_holder:
            "a release after the lock expired does not touch the next owner's lock",
    }
    crowd {
        one_of_a_crowd_is_granted:
            "of many who ask at once for a free resource exactly one is granted",
        counters_of_a_crowd_are_distinct_and_leave_no_gap:
            "calls that run at once behave as if they had come one after the other, so every grant has the next counter",
        several_resources_stay_together_in_a_crowd:
            "sets of resources that overlap are granted as a whole or not at all, whoever asks at once",
        a_raise_is_one_step:
            "the owner check of a raise and the raise are one atomic step",
        an_extension_is_one_step:
            "the owner check of an extension and the extension are one atomic step",
        a_release_is_one_step:
            "the owner check of a release and the release are one atomic step",
    }
    cancelled {
        a_dropped_acquire_took_all_or_none:
            "an acquire whose future is dropped at any poll has taken effect as a whole or not at all",
        a_dropped_acquire_is_undone_by_a_release:
            "a release undoes an acquire whose future was dropped at any poll",
        a_dropped_raise_happened_or_not:
            "a raise whose future is dropped at any poll has taken effect as a whole or not at all",
        a_dropped_extension_leaves_the_lock:
            "an extension whose future is dropped at any poll leaves its owner the holder",
        a_dropped_release_can_be_repeated:
            "a release whose future was dropped at any poll can be repeated",
    }
    troubled {
        the_node_comes_back_after_its_connections_broke:
            "a node works again after its connections were cut, and has forgotten nothing",
        a_call_is_made_once:
            "a call is not repeated inside the node after it may have taken effect",
        a_call_ends_though_nobody_answers:
            "a call ends by itself even if the other end never answers",
    }
    lines {
        the_first_in_line_is_called_when_the_lock_is_released:
            "a release wakes the first waiter in line, and no other",
        whoever_is_called_is_granted_as_anybody:
            "a waiter that was called is granted by the same rules as anybody, and leaves the line",
        whoever_yields_lets_the_first_in_line_go_first:
            "a waiter that yields is not granted before the first in line, who is woken again",
        a_call_is_passed_on_by_leaving_the_line:
            "whoever leaves the line passes a wake-up on to the next",
    }
    offered {
        the_name_stays_the_same:
            "a node has a name for people, and keeps it",
        calls_keep_the_order_they_claim:
            "calls of a node that claims an order take effect in the order in which their futures were first polled",
        inspection_tells_what_is_there:
            "an inspection tells who holds each resource, for how long, and where its counter stands, and changes nothing",
        health_is_that_of_a_node_that_decides:
            "health is told without an error, and is that of a primary",
        the_identity_stays_the_same:
            "the identity of a server is the same on every connection and after every call",
        unix_time_goes_on:
            "the node's calendar time goes on with time, and agrees with its health",
    }
}
