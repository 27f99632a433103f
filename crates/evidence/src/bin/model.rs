//! Explores what the plan has, and compares with what it had: `model [--long] [WORD…]`.

#![expect(clippy::print_stdout, reason = "a program that reports")]

use anyhow::{Result, bail, ensure};
use redlock_evidence::model::{check, explorations, refutations, refute};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (flags, filter): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| word.starts_with('-'));
    let long = match flags.as_slice() {
        [] => false,
        [flag] if flag == "--long" => true,
        _ => bail!("only --long is known, not {}", flags.join(" ")),
    };
    let wanted = |name: &str| filter.iter().all(|word| name.contains(word.as_str()));
    let mut wrong = Vec::new();
    let mut explored = 0;

    for exploration in explorations().into_iter().filter(|exploration| long || !exploration.long) {
        let name = exploration.name;
        if !wanted(name) {
            continue;
        }
        let checked = check(exploration.setup);
        explored += 1;
        println!("{:>11} states, {:>2} events deep: {name}", checked.states, checked.depth);
        for promise in checked.refuted.keys() {
            wrong.push(format!("{name}: not {promise}: {:#?}", checked.refutation(promise)));
        }
        wrong.extend(checked.unreached.iter().map(|unreached| format!("{name}: never {unreached}")));
        if checked.states != exploration.states {
            wrong.push(format!("{name}: {} states, not {}", checked.states, exploration.states));
        }
    }
    for refutation in refutations() {
        let promise = refutation.promise;
        let name = format!("{:?}: not {promise}", refutation.setup.rule);
        if !wanted(&name) {
            continue;
        }
        explored += 1;
        let checked = refute(refutation.setup, promise);
        if !checked.refuted.contains_key(promise) {
            wrong.push(format!("{name}: {} states do not refute it", checked.states));
            continue;
        }
        let events = checked.refutation(promise).len();
        println!("{:>11} states, {events:>2} events refute it: {name}", checked.states);
        if events != refutation.events {
            wrong.push(format!("{name}: refuted by {events} events, not {}", refutation.events));
        }
    }
    ensure!(0 < explored, "nothing in the plan has {} in its name", filter.join(" and "));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("the model agrees with its plan");
    Ok(())
}
