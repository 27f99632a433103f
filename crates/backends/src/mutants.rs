//! Deliberate bugs, to measure the tests by: does anything fail if one of them is there?
//!
//! Each stands where it would be made, behind `mutant!` and its name. In a build with `--cfg redlock_mutants`, which only
//! `cargo xtask mutants` makes, the environment variable `REDLOCK_MUTANT` switches on one of them; in every other build there
//! is no such switch, and `mutant!` is `false`. The page `docs/mutants.md` says what catches which.

#[cfg(not(redlock_mutants))]
macro_rules! mutant {
    ($name:literal) => {
        false
    };
}

#[cfg(redlock_mutants)]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::is_on($name)
    };
}

#[cfg(redlock_mutants)]
pub(crate) fn is_on(name: &str) -> bool {
    static ON: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ON.get_or_init(|| std::env::var("REDLOCK_MUTANT").ok()).as_deref() == Some(name)
}

/// A script with a bug in it.
#[cfg(redlock_mutants)]
pub(crate) fn script(text: &'static str) -> &'static str {
    let (right, wrong) = if mutant!("a raise does not look at the owner") {
        ("if redis.pcall('GET', KEYS[i]) ~= owner then return false end", "")
    } else if mutant!("an extension adds") {
        ("ARGV[i + 2]) end", "ARGV[i + 2] + redis.call('PTTL', KEYS[key])) end")
    } else if mutant!("an extension takes anew what is gone") {
        (
            "reply = math.min(reply, 0)\n    elseif holder ~=",
            "redis.call('SET', KEYS[key], ARGV[i + 1])\n    elseif holder ~=",
        )
    } else if mutant!("anybody releases") {
        ("if holder == ARGV[1] then\n", "if holder then\n")
    } else if mutant!("a release calls nobody") {
        ("if (not holder or holder == ARGV[1]) and call_first", "if false and call_first")
    } else if mutant!("a grant does not raise the counter") {
        ("math.max(final, old + 1)", "math.max(final, old)")
    } else if mutant!("a grant takes what is held") {
        ("owner, 'NX', 'PX', ttl) then return held(1)", "owner, 'PX', ttl) then return held(1)")
    } else if mutant!("a grant takes some of several") {
        ("if redis.call('EXISTS', KEYS[i]) == 1 then return held(i) end", "")
    } else if mutant!("expired counters are forgotten") {
        ("return base\nend", "return 0\nend")
    } else if mutant!("a node that was emptied votes") {
        ("if GUARDED and (not fields[5] or fields[6]) then return nil end", "")
    } else if mutant!("another server's record is believed") {
        (" and (fields[1] == identity or blind or fields[1] == 'unreadable')", "")
    } else if mutant!("no quarantine") {
        ("math.max(0, noticed + quarantine - now)", "0")
    } else {
        return text;
    };
    Box::leak(text.replace(right, wrong).into_boxed_str())
}
