//! The examples, run for what they claim.

#![cfg(feature = "sqlite")]

#[path = "../examples/outbox.rs"]
mod outbox;
#[path = "../examples/payment.rs"]
mod payment;

#[tokio::test]
async fn a_payment_is_charged_once_under_a_frozen_worker() {
    let (done, charges) = payment::run().await.unwrap();
    assert_eq!(done, [payment::Done::WasLate, payment::Done::Charged, payment::Done::HadBeenCharged]);
    assert_eq!(charges, [500]);
}

#[tokio::test]
async fn an_outbox_tells_each_thing_once_under_a_frozen_relay() {
    let (taken, dropped, was_late) = outbox::run().await.unwrap();
    assert_eq!(taken, ["order 1 was taken", "order 2 was taken"]);
    assert_eq!(dropped, taken);
    assert!(was_late);
}
