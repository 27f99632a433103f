//! The in-memory node keeps every promise.

use crate::common::in_virtual_time;
use crate::fixtures::InMemory;
use redlock_core::conformance::{PROMISES, check_all};

redlock_core::conformance_tests!(InMemory::new());

#[test]
fn a_hundred_times_over() {
    in_virtual_time(async {
        for _ in 0..100 {
            let conformance = check_all(&InMemory::new()).await;
            conformance.assert_kept();
            let not_offered: Vec<_> = conformance.not_offered().map(|(name, _)| name).collect();
            // It has no connections, and nothing else that tells it from others.
            let expected = [
                "the_node_comes_back_after_its_connections_broke",
                "a_call_is_made_once",
                "a_call_ends_though_nobody_answers",
                "the_identity_stays_the_same",
            ];
            assert_eq!(not_offered, expected);
            assert_eq!(conformance.kept().count(), PROMISES.len() - expected.len());
        }
    });
}
