//! Is affinity worth having?

use serde::Serialize;

use super::inputs::Inputs;
use super::sums::{Fleet, Sums};

/// Below this share of saved prompt tokens, affinity gathers load for too little.
pub const LEAST_SAVED_SHARE: f64 = 0.2;

/// Below this share of saved replica time, the difference is smaller than the errors of these sums.
pub const LEAST_SAVED_LOAD: f64 = 0.05;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// Send requests where their prefix is.
    Affinity,
    /// Look at the queues only.
    LeastQueuedTokens,
    /// It makes no difference.
    Indifferent,
}

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What to do.
    pub choice: Choice,
    /// Why: the first decided.
    pub reasons: Vec<String>,
    /// What else should be known.
    pub notes: Vec<String>,
}

/// Judges by the sums. Where these stand on the `measured` order of the requests, it does not matter whether the set
/// fits: the pools' shares say all.
pub fn judge(inputs: &Inputs, sums: &Sums, measured: bool) -> Verdict {
    let mut verdict = match little(inputs, sums) {
        Some(verdict) => verdict,
        None if measured => by_shares(inputs, sums),
        None => by_the_set(sums),
    };
    let notes = if measured {
        forgotten(inputs, sums).into_iter().collect()
    } else {
        notes(inputs, sums)
    };
    verdict.notes.extend(notes);
    verdict
}

/// Too little can be saved.
fn little(inputs: &Inputs, sums: &Sums) -> Option<Verdict> {
    let offered = inputs.warm_share * inputs.shared_tokens / inputs.prompt_tokens;
    if offered < LEAST_SAVED_SHARE {
        return Some(because(
            Choice::LeastQueuedTokens,
            format!(
                "hits could save {:.1} % of the prompt tokens ({:.1} % of a prompt is shared, {:.1} % of requests come after \
                 another with their prefix), which is under about a fifth",
                offered * 100.0,
                inputs.shared_tokens / inputs.prompt_tokens * 100.0,
                inputs.warm_share * 100.0,
            ),
        ));
    }
    (sums.saved_share < LEAST_SAVED_SHARE).then(|| {
        because(
            Choice::LeastQueuedTokens,
            format!(
                "what prompts share is {:.1} pools and {} replicas have too little room for it: {:.0} % of it is gone when it \
                 is asked for again, and hits save only {:.1} % of the prompt tokens, under about a fifth",
                sums.set_pools,
                sums.affinity.replicas,
                (1.0 - sums.saved_share / offered) * 100.0,
                sums.saved_share * 100.0,
            ),
        )
    })
}

/// By what pools find of a recording, together and by chance.
fn by_shares(inputs: &Inputs, sums: &Sums) -> Verdict {
    let (cold, chance, warm) = (&sums.cold, &sums.chance, &sums.affinity);
    let found =
        |fleet: &Fleet| fleet.warm_share * inputs.shared_tokens / inputs.prompt_tokens * 100.0;
    let (with, without) = (found(warm), found(chance));
    if chance.replicas == 1 {
        return because(
            Choice::Indifferent,
            format!(
                "one replica carries this load and finds {without:.1} % of the prompt tokens, so there is nothing to choose"
            ),
        );
    }
    if saved_load(sums) < LEAST_SAVED_LOAD {
        return because(
            Choice::Indifferent,
            format!(
                "affinity saves {:.1} % of the replicas' time, less than these sums are exact: {with:.1} % of the prompt tokens \
                 are found with it and {without:.1} % by chance, and {:.1} % of the time is decoding, which a cached prefix does \
                 not shorten",
                saved_load(sums) * 100.0,
                chance.decode_load / chance.load * 100.0,
            ),
        );
    }
    because(
        Choice::Affinity,
        format!(
            "hits save {with:.1} % of the prompt tokens with affinity and {without:.1} % by chance: {} replicas instead of {} \
             without hits, or {} with those that chance brings",
            warm.replicas, cold.replicas, chance.replicas,
        ),
    )
}

/// By whether the set of prefixes fits in a pool.
fn by_the_set(sums: &Sums) -> Verdict {
    let (cold, chance, warm) = (&sums.cold, &sums.chance, &sums.affinity);
    if let Some(room) = sums.room_prefixes
        && sums.prefix_copies <= room
    {
        return because(
            Choice::Indifferent,
            format!(
                "the whole set fits in every pool ({} prefixes, room for {room}): each replica becomes warm for everyone, \
                 wherever requests go",
                sums.prefix_copies,
            ),
        );
    }
    if saved_load(sums) < LEAST_SAVED_LOAD {
        return because(
            Choice::Indifferent,
            format!(
                "hits save {:.1} % of the replicas' time, less than these sums are exact: {:.1} % of it is decoding, which a \
                 cached prefix does not shorten",
                saved_load(sums) * 100.0,
                chance.decode_load / chance.load * 100.0,
            ),
        );
    }
    because(
        Choice::Affinity,
        format!(
            "hits save {:.1} % of the prompt tokens, and the set of prefixes is {:.2} pools, so it fits no single replica: {} \
             replicas instead of {} without hits, or about {} with those that chance brings",
            sums.saved_share * 100.0,
            sums.set_pools,
            warm.replicas,
            cold.replicas,
            chance.replicas,
        ),
    )
}

/// Share of the replicas' time that affinity saves, beside hits by chance.
fn saved_load(sums: &Sums) -> f64 {
    1.0 - sums.affinity.load / sums.chance.load
}

fn because(choice: Choice, reason: String) -> Verdict {
    Verdict {
        choice,
        reasons: vec![reason],
        notes: Vec::new(),
    }
}

/// Says when a recording is too short for the fleets that are compared. Each replica finds nothing for its first request,
/// wherever that comes from, so that of so many requests at least `replicas / requests` are cold only because the
/// recording begins. Once this is as much as the share of time that decides, the decision may stand on the beginning alone.
pub(super) fn too_short(requests: u64, sums: &Sums) -> Option<String> {
    let replicas = sums.chance.replicas;
    let least = (replicas as f64 / LEAST_SAVED_LOAD).ceil();
    ((requests as f64) < least).then(|| {
        format!(
            "the trace is too short to say: each replica begins cold, which with {} and {} is more than the {:.0} % that decide; \
             it would take {least:.0} requests or more, {:.0} a replica",
            counted(requests, "request"),
            counted(replicas, "replica"),
            LEAST_SAVED_LOAD * 100.0,
            1.0 / LEAST_SAVED_LOAD,
        )
    })
}

fn counted(n: u64, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {what}{plural}")
}

/// What the pools cannot keep of a recording.
fn forgotten(inputs: &Inputs, sums: &Sums) -> Option<String> {
    let kept = sums.affinity.warm_share / inputs.warm_share;
    (kept < 0.95).then(|| {
        format!(
            "{} pools together still have {:.0} % of what prompts share when it is asked for again",
            sums.affinity.replicas,
            kept * 100.0,
        )
    })
}

fn notes(inputs: &Inputs, sums: &Sums) -> Vec<String> {
    let mut notes = Vec::new();
    let fits = sums
        .room_prefixes
        .is_some_and(|room| sums.prefix_copies <= room);
    if fits && saved_load(sums) > LEAST_SAVED_LOAD {
        notes.push(format!(
            "the set fits, but only just: what requests have of their own passes through the same pools and pushes prefixes \
             out, so by chance about {:.0} % find theirs, and {:.0} % with affinity ({} replicas and {}); simulate this load",
            sums.chance.warm_share * 100.0,
            sums.affinity.warm_share * 100.0,
            sums.chance.replicas,
            sums.affinity.replicas,
        ));
    }
    let pools = sums.affinity.replicas as f64 * sums.pool_tokens;
    if inputs.shared_tokens > 0.0 && sums.set_tokens > pools {
        notes.push(format!(
            "the set is too large for all pools together ({:.1} million tokens, {:.1} million on {} replicas): about {:.0} % of \
             requests find their prefix instead of {:.0} %",
            sums.set_tokens / 1e6,
            pools / 1e6,
            sums.affinity.replicas,
            sums.affinity.warm_share * 100.0,
            inputs.warm_share * 100.0,
        ));
    }
    if inputs.copies() > 1 {
        notes.push(format!(
            "{} tenants with salts of their own hold {} copies of {} prefixes; nothing is shared between them",
            inputs.copies(),
            sums.prefix_copies,
            inputs.prefixes,
        ));
    }
    notes
}
