//! What do customers say? Plain sentences, made of few words by a seeded generator, as many as wanted.

use std::fmt::Write as _;

use fastrand::Rng;

const WHO: [&str; 8] = [
    "a new customer",
    "a returning customer",
    "the account owner",
    "a colleague from finance",
    "somebody without a login",
    "a partner",
    "an auditor",
    "the person on call",
];
const ASKS: [&str; 10] = [
    "asks about an invoice",
    "wants to move to another plan",
    "reports an outage",
    "cannot find a delivery",
    "asks for a refund",
    "sends a screenshot of an error",
    "wants to close the account",
    "asks how long data is kept",
    "needs a copy of the contract",
    "complains about the last answer",
];
const THEN: [&str; 10] = [
    "look up the order number first",
    "answer in the language of the question",
    "name the page of the handbook that applies",
    "offer a call back within two working days",
    "never promise a date that is not in the system",
    "confirm the address before anything is changed",
    "open a ticket and quote its number",
    "explain the three steps in short sentences",
    "hand over to the team that owns the product",
    "keep amounts in the currency of the invoice",
];
const UNLESS: [&str; 8] = [
    "unless the ticket is marked as urgent",
    "even if the same was said before",
    "and thank them for their patience",
    "but only during office hours",
    "and write down why",
    "unless a manager has agreed otherwise",
    "and link the article that helps most",
    "but do not mention internal names",
];

/// The system prompt of one customer: who it is for, then so many rules.
pub(super) fn handbook(rng: &mut Rng, customer: &str, rules: usize) -> String {
    // Nothing in common with another customer's, from the first block on.
    let mut text = format!(
        "{customer} runs this assistant. You answer for {customer}, and these are its rules.\n"
    );
    for number in 1..=rules {
        // Writing to a string cannot fail.
        writeln!(text, "{number}. {}", rule(rng)).ok();
    }
    text
}

/// A question that nobody has asked before.
pub(super) fn question(rng: &mut Rng, number: usize) -> String {
    format!(
        "Case {number}, reference {:08x}: {} {}. What do we do, and what do we tell them?",
        rng.u32(..),
        one(rng, &WHO),
        one(rng, &ASKS),
    )
}

fn rule(rng: &mut Rng) -> String {
    format!(
        "When {} {}, {}, {}.",
        one(rng, &WHO),
        one(rng, &ASKS),
        one(rng, &THEN),
        one(rng, &UNLESS),
    )
}

fn one<'a>(rng: &mut Rng, of: &[&'a str]) -> &'a str {
    rng.choice(of).copied().unwrap_or_default()
}
