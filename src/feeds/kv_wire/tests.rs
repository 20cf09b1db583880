//! Payloads of every dialect, real and made, and bytes that are none.

mod dialects;
mod keys;
mod real;
mod total;

use super::*;
use crate::routing::event::{BlockExtra, EngineHash, Medium, Removed, Stored};

/// The payloads that msgspec makes from the engines' own struct definitions: one store of the
/// tokens 1 to 4, one removal, one clear.
pub(super) const GOLDEN: [&str; 3] = [
    "92cb3ff80000000000009396ab426c6f636b53746f72656491fbc0940102030404c092ac426c6f636b52656d6f76656491fb91b0416c6c426c6f636b73436c6561726564",
    "93cb3ff80000000000009397ab426c6f636b53746f72656491cfffffffffffffffff07940102030404c0a347505593ac426c6f636b52656d6f76656491cfffffffffffffffffa347505591b0416c6c426c6f636b73436c656172656400",
    "93cb3ff8000000000000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfffffffffffffffffb1706172656e745f626c6f636b5f6861736807a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cfffffffffffffffffa66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c6561726564",
];

pub(super) fn bytes(hex: &str) -> Vec<u8> {
    let digit = |c: &u8| char::from(*c).to_digit(16).expect("a hex digit");
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::try_from(digit(&pair[0]) << 4 | digit(&pair[1])).expect("a byte"))
        .collect()
}

/// A store of the tokens 1 to 4 in one block, as a root.
pub(super) fn stored(hash: u64) -> Stored {
    Stored {
        hashes: vec![EngineHash(hash)],
        parent: None,
        tokens: vec![1, 2, 3, 4],
        opaque_tokens: false,
        block_size: 4,
        lora_name: None,
        extras: Vec::new(),
        medium: Medium::Gpu,
        group: None,
        indexable_group: true,
    }
}

#[test]
fn golden_payloads_of_three_releases_are_read_whole() {
    let [oldest, middle, newest] = GOLDEN.map(|hex| decode(&bytes(hex)).expect("a batch"));
    let hash = |value| vec![EngineHash(value)];
    let removed = |value, group| {
        KvEvent::Removed(Removed {
            hashes: hash(value),
            medium: Medium::Gpu,
            group,
        })
    };
    // Minus five, as a signed hash of 0.9.0.
    let minus_five = u64::MAX - 4;
    assert_eq!(
        oldest,
        Batch {
            ts: 1.5,
            rank: None,
            events: vec![
                KvEvent::Stored(stored(minus_five)),
                removed(minus_five, None),
                KvEvent::Cleared,
            ],
            skipped: Skipped::default(),
        }
    );
    let child = Stored {
        parent: Some(EngineHash(7)),
        ..stored(u64::MAX)
    };
    assert_eq!(
        middle,
        Batch {
            ts: 1.5,
            rank: Some(0),
            events: vec![
                KvEvent::Stored(child.clone()),
                removed(u64::MAX, None),
                KvEvent::Cleared,
            ],
            skipped: Skipped::default(),
        }
    );
    assert_eq!(
        newest,
        Batch {
            ts: 1.5,
            rank: None,
            events: vec![
                KvEvent::Stored(Stored {
                    group: Some(0),
                    ..child
                }),
                removed(u64::MAX, Some(0)),
                KvEvent::Cleared,
            ],
            skipped: Skipped::default(),
        }
    );
}
