//! Promises about acquire: who is granted what, and what a refusal says and leaves alone.

use super::stage::{LONG, Outcome, SHORT, Stage, answered, broken, drift, due, ttl};
use crate::node::{Acquisition, Extension, Holder, Remaining};
use crate::resource::{RESOURCE_NAME_LEN_MAX, RESOURCES_MAX};

pub(super) async fn a_free_resource_is_granted(stage: &Stage<'_>) -> Outcome {
    stage.takes(&stage.somebody("a"), LONG, 0).await?;
    stage.takes(&stage.somebody(["b", "c"]), LONG, 0).await?;
    Ok(())
}

pub(super) async fn a_held_resource_is_refused_and_nothing_changes(stage: &Stage<'_>) -> Outcome {
    let (holder, rival) = (stage.somebody("a"), stage.somebody("a"));
    let counter = stage.takes(&holder, LONG, 0).await?;
    if let Acquisition::Granted { counter } = stage.acquire(&rival, SHORT, counter + 1_000).await? {
        return broken(format!("an acquire of what another owner holds was granted with counter {counter}"));
    }
    due("the holder's extension after a rival was refused", stage.extend(&holder, LONG).await?, Extension::Extended)?;
    stage.gives_back(&holder).await?;
    stage.counter_is("a", counter).await
}

pub(super) async fn the_holder_is_refused_as_well(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("a");
    let counter = stage.takes(&holder, LONG, 0).await?;
    if let Acquisition::Granted { counter } = stage.acquire(&holder, LONG, 0).await? {
        return broken(format!("a second acquire by the holder was granted with counter {counter}"));
    }
    stage.is_refused(&stage.same_owner(&holder, ["a", "b"])).await?;
    stage.gives_back(&holder).await?;
    stage.counter_is("a", counter).await
}

pub(super) async fn one_that_is_held_refuses_all(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody("b");
    let counter = stage.takes(&stage.somebody("c"), LONG, 0).await?;
    stage.takes(&holder, LONG, 500).await?;
    stage.is_refused(&stage.somebody(["a", "b"])).await?;
    stage.is_refused(&stage.somebody(["b", "z"])).await?;
    for name in ["a", "z"] {
        let others = stage.takes(&stage.somebody(name), LONG, 0).await?;
        // A node that starts all counters from a base may begin higher than one, yet not at what `b` has alone.
        if counter < others {
            return broken(format!(
                "{name} was counted up to {others} by an acquire that was refused; a fresh counter starts at {counter}"
            ));
        }
    }
    Ok(())
}

pub(super) async fn as_many_as_a_lock_may_cover_are_granted(stage: &Stage<'_>) -> Outcome {
    let names: Vec<String> = (0..RESOURCES_MAX).map(|n| format!("r{n}")).collect();
    let holder = stage.somebody(&names[..]);
    let counter = stage.takes(&holder, LONG, 0).await?;
    for name in [&names[0], &names[RESOURCES_MAX - 1]] {
        stage.is_refused(&stage.somebody(name)).await?;
    }
    due("the extension of as many", stage.extend(&holder, LONG).await?, Extension::Extended)?;
    stage.gives_back(&holder).await?;
    stage.counter_is(&names[RESOURCES_MAX - 1], counter).await
}

pub(super) async fn a_refusal_tells_what_is_in_the_way(stage: &Stage<'_>) -> Outcome {
    let holder = stage.somebody(["b", "c"]);
    let before = stage.now();
    stage.takes(&holder, LONG, 0).await?;
    let held = stage.is_refused(&stage.somebody(["a", "b", "c"])).await?;
    let elapsed = stage.now().since(before);
    due("what is in the way", held.resource.name(), "b")?;
    match held.holder {
        Holder::Owner(fingerprint) => due("who holds it", fingerprint, holder.owner().fingerprint())?,
        Holder::Foreign { kind } => return broken(format!("a lock of this library was called foreign: {kind}")),
        Holder::Line => return broken("a lock that is held was called free for those in line"),
        Holder::Unknown => {}
    }
    let least = LONG.saturating_sub(elapsed + drift(LONG));
    match held.remaining {
        Remaining::For(remaining) if remaining < least || LONG + stage.fixture.lateness() < remaining => {
            broken(format!("{remaining:?} were said to remain {elapsed:?} after an acquire for {LONG:?}"))
        }
        Remaining::WithoutExpiry => broken("a lock with a ttl was said to have no expiry"),
        Remaining::For(_) | Remaining::Unknown => Ok(()),
    }
}

/// Names that are one where somebody compares without regard to case, trailing blanks, accents or patterns, cuts off, stops
/// at a zero byte, or reads numbers.
fn names_easily_taken_for_each_other() -> Vec<String> {
    let short = [
        "a",
        "A",
        "a ",
        " a",
        "a\0",
        "a\0b",
        "\u{e1}",
        "a\u{301}",
        "\u{ff41}",
        "a%",
        "a_",
        "a*",
        "a?",
        "a'b",
        "a''b",
        "a\"b",
        "a\\b",
        "a\\\\b",
        "a/b",
        "a:b",
        "a{b}",
        "a{b",
        "a}b",
        "{a}b",
        "a\n",
        "a\r\n",
        "1",
        "01",
        "1.0",
        "ss",
        "\u{df}",
        "i",
        "I",
        "\u{131}",
        "\u{1f512}",
    ];
    let long = |last: char| format!("{}{last}", "x".repeat(RESOURCE_NAME_LEN_MAX - 1));
    short.into_iter().map(str::to_owned).chain([long('1'), long('2')]).collect()
}

pub(super) async fn names_are_told_apart(stage: &Stage<'_>) -> Outcome {
    let names = names_easily_taken_for_each_other();
    let mut holders = Vec::with_capacity(names.len());
    let mut floor = 0;
    for name in &names {
        floor += 1_000;
        let holder = stage.somebody(name);
        let Acquisition::Granted { counter } = stage.acquire(&holder, LONG, floor).await? else {
            return broken(format!("{name:?} was not free, though only other names are held"));
        };
        due(&format!("the first acquire of {name:?} with floor {floor}"), counter, floor + 1)?;
        holders.push((holder, counter));
    }
    let elsewhere = stage.under_another_prefix(&holders[0].0);
    let Acquisition::Granted { .. } = stage.acquire(&elsewhere, LONG, 0).await? else {
        return broken("a name was not free under another prefix");
    };
    for (name, (holder, counter)) in names.iter().zip(&holders) {
        stage.gives_back(holder).await?;
        stage.counter_is(name, *counter).await?;
    }
    Ok(())
}

pub(super) async fn two_connections_see_one_node(stage: &Stage<'_>) -> Outcome {
    let [one, other] = stage.connections().await;
    let (holder, rival) = (stage.somebody("a"), stage.somebody("a"));
    let Acquisition::Granted { counter } = answered("an acquire", one.acquire(&holder, ttl(LONG), 0).await)? else {
        return broken("a free resource was refused");
    };
    let Acquisition::Held(_) = answered("an acquire", other.acquire(&rival, ttl(LONG), 0).await)? else {
        return broken("what one connection had taken, another connection granted as well");
    };
    stage.gives_back(&holder).await?;
    let next = answered("an acquire", other.acquire(&rival, ttl(LONG), 0).await)?;
    due("the next acquire, on another connection", next, Acquisition::Granted { counter: counter + 1 })
}
