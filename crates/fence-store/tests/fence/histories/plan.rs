//! What the holders of a history are to do: all of it drawn from one seed, so that the seed brings the plan back.
//!
//! The plan says who writes what under which token, where its future is dropped, and when connections are killed or cut.
//! What the database makes of it, in which order, is not planned; the journal tells.

use fence_store::Isolation;

use crate::support::ISOLATIONS;

/// Rows that are fought over: few, so that holders meet.
pub(super) const KEYS: i64 = 5;

/// How far apart tokens may be dealt in time. Most find the fence below them, and many above.
const SHUFFLE: u64 = 8;

/// Planned tokens lie between these, and leave room below and above.
pub(super) const TOKEN_MIN: i64 = 100;
pub(super) const TOKEN_MAX: i64 = 100_000;

/// What stands before the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guarded {
    No,
    Strictly,
    MayRewrite,
}

/// One holder's work under one token, which nobody else has.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) token: i64,
    pub(super) form: Form,
    /// The rows, in the order in which they are named. The grant is on the resources of all of them.
    pub(super) keys: Vec<i64>,
    pub(super) isolation: Isolation,
    /// After so many polls the future is dropped.
    pub(super) drop_after: Option<usize>,
    /// What befalls the holders while it works.
    pub(super) fault: Option<Fault>,
}

/// What happens to connections, where there is a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server ends the session at this place.
    Kill(u64),
    /// All connections are cut, with the answers that were on their way.
    Cut,
}

/// A form of fenced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Update,
    /// The strict rule lets a grant write once.
    UpdateTwice,
    UpdateRows,
    Upsert,
    UpsertRows,
    InsertSelect,
    Claim,
    ClaimAndUpdate,
    ClaimAndDelete,
    ClaimResources,
    Delete,
    DeleteRows,
    /// Reads and writes what the ledger protects, and a row with a fence of its own; then ends in one of three ways.
    Transaction(End),
    Joined(End),
    Run,
    /// What nobody should do: a statement without a condition on the fence. Only where a test wants to see it found.
    Unfenced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Commit,
    Rollback,
    Drop,
}

const FORMS: [Form; 19] = [
    Form::Update,
    Form::UpdateTwice,
    Form::UpdateRows,
    Form::UpdateRows,
    Form::Upsert,
    Form::Upsert,
    Form::UpsertRows,
    Form::UpsertRows,
    Form::InsertSelect,
    Form::Claim,
    Form::ClaimAndUpdate,
    Form::ClaimAndDelete,
    Form::ClaimResources,
    Form::Delete,
    Form::DeleteRows,
    Form::Transaction(End::Commit),
    Form::Transaction(End::Rollback),
    Form::Joined(End::Commit),
    Form::Run,
];

/// Numbers that a seed decides: splitmix64.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.place(values.len())]
    }

    fn place(&mut self, len: usize) -> usize {
        let place = self.below(u64::try_from(len).expect("a length fits"));
        usize::try_from(place).expect("below a length")
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Work for each of some holders, who do theirs one after the other.
pub(super) fn plan(seed: u64, guarded: Guarded, holders: usize, works_each: usize) -> Vec<Vec<Work>> {
    let mut dice = Dice::new(seed);
    let count = holders * works_each;
    // Roughly rising, so that fences go on moving to the end.
    let mut order: Vec<(u64, usize)> =
        (0..count).map(|place| (u64::try_from(place).expect("few") + dice.below(SHUFFLE), place)).collect();
    order.sort_unstable();
    let mut tokens = vec![0; count];
    for (rank, (_, place)) in order.into_iter().enumerate() {
        tokens[place] = i64::try_from(rank).expect("few") + TOKEN_MIN;
    }
    let mut plan = vec![Vec::new(); holders];
    for (place, token) in tokens.into_iter().enumerate() {
        plan[place % holders].push(work(&mut dice, guarded, token));
    }
    plan
}

fn work(dice: &mut Dice, guarded: Guarded, token: i64) -> Work {
    let mut form = dice.pick(&FORMS);
    // A strict guard lets a token pass once, and a claim has passed.
    if guarded == Guarded::Strictly && matches!(form, Form::ClaimAndUpdate | Form::ClaimAndDelete) {
        form = Form::Claim;
    }
    if form == Form::Transaction(End::Rollback) && dice.once_in(2) {
        form = Form::Transaction(End::Drop);
    } else if form == Form::Joined(End::Commit) && dice.once_in(4) {
        form = Form::Joined(dice.pick(&[End::Rollback, End::Drop]));
    }
    let mut keys: Vec<i64> = (1..=KEYS).collect();
    for place in (1..keys.len()).rev() {
        keys.swap(place, dice.place(place + 1));
    }
    let several = matches!(
        form,
        Form::UpdateRows
            | Form::UpsertRows
            | Form::InsertSelect
            | Form::DeleteRows
            | Form::ClaimResources
            | Form::Transaction(_)
            | Form::Joined(_)
            | Form::Run
    );
    keys.truncate(if several { 1 + dice.place(3) } else { 1 });
    // The caller's own transaction is sqlx's, and dropping the future of its BEGIN leaves it open in the pool.
    let may_drop = !matches!(form, Form::Joined(_));
    let drop_after = (may_drop && dice.once_in(3)).then(|| 1 + dice.place(45));
    let fault = match dice.below(24) {
        0 => Some(Fault::Cut),
        1 | 2 => Some(Fault::Kill(dice.below(64))),
        _ => None,
    };
    Work { token, form, keys, isolation: dice.pick(&ISOLATIONS), drop_after, fault }
}
