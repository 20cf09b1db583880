//! What is advised for which load.

use super::*;

#[test]
fn least_queued_tokens_when_little_is_shared() {
    let little = Given {
        shared_tokens: Some(800.0),
        ..reference()
    };
    let (choice_, why) = choice(little);
    assert_eq!(choice_, Choice::LeastQueuedTokens);
    assert!(why.contains("under about a fifth"), "{why}");
    let nothing = Given {
        shared_tokens: Some(0.0),
        ..reference()
    };
    assert_eq!(choice(nothing).0, Choice::LeastQueuedTokens);
    let seldom = Given {
        warm_share: Some(0.1),
        ..reference()
    };
    assert_eq!(choice(seldom).0, Choice::LeastQueuedTokens);
}

#[test]
fn indifferent_when_the_whole_set_fits_in_every_pool() {
    for prefixes in [1, 20, 70] {
        let (choice, why) = choice(Given {
            prefixes: Some(prefixes),
            ..reference()
        });
        assert_eq!(choice, Choice::Indifferent, "{prefixes}: {why}");
        assert!(why.contains("fits in every pool"), "{why}");
    }
    let (choice, _) = choice(Given {
        prefixes: Some(71),
        ..reference()
    });
    assert_eq!(choice, Choice::Affinity);
}

#[test]
fn a_set_that_only_just_fits_comes_with_a_warning() {
    let (_, ample) = choice(Given {
        prefixes: Some(10),
        ..reference()
    });
    assert!(!ample.contains("only just"), "{ample}");
    let (_, tight) = choice(Given {
        prefixes: Some(65),
        ..reference()
    });
    assert!(tight.contains("only just"), "{tight}");
}

#[test]
fn indifferent_when_decoding_is_what_costs() {
    let reasoning = Given {
        prompt_tokens: Some(1250.0),
        shared_tokens: Some(1000.0),
        prefixes: Some(2000),
        output_tokens: Some(8000.0),
        ..reference()
    };
    let (choice, why) = choice(reasoning);
    assert_eq!(choice, Choice::Indifferent, "{why}");
    assert!(why.contains("decoding"), "{why}");
}

#[test]
fn sessions_too_large_for_all_pools_together_are_told_and_count_less() {
    let sessions = |prefixes| Given {
        prompt_tokens: Some(40_000.0),
        shared_tokens: Some(36_000.0),
        prefixes: Some(prefixes),
        ..reference()
    };
    let some = inputs_of(sessions(2_000));
    let many = Sums::of(&inputs_of(sessions(1_000_000))).unwrap();
    let few = Sums::of(&some).unwrap();
    assert!(few.affinity.warm_share < some.warm_share);
    assert!(many.affinity.warm_share < few.affinity.warm_share);
    let (verdict, why) = choice(sessions(1_000_000));
    assert_eq!(verdict, Choice::LeastQueuedTokens, "{why}");
    assert!(why.contains("too large for all pools together"), "{why}");
}

#[test]
fn tenants_with_salts_multiply_the_copies() {
    let one = Given {
        prefixes: Some(20),
        ..reference()
    };
    assert_eq!(choice(one.clone()).0, Choice::Indifferent);
    let salted = Given {
        tenants_with_salts: Some(10),
        ..one
    };
    let sums = Sums::of(&inputs_of(salted.clone())).unwrap();
    assert_eq!(sums.prefix_copies, 200);
    assert_eq!(sums.set_tokens, 1_200_000.0);
    let (choice, why) = choice(salted);
    assert_eq!(choice, Choice::Affinity);
    assert!(why.contains("200 copies"), "{why}");
}
