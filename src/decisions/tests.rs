use super::*;

fn id(slot: u32) -> EndpointId {
    EndpointId {
        slot,
        generation: 0,
    }
}

fn picked(request_id: &str) -> Picked {
    let candidate = |slot, excluded| Candidate {
        id: id(slot),
        cached: TokenCount::new(64),
        cached_below: TokenCount::new(16),
        queued: TokenCount::new(100),
        in_flight: 3,
        cost: TokenCount::new(136),
        excluded,
    };
    Picked {
        at: SystemTime::UNIX_EPOCH,
        request_id: Some(request_id.into()),
        understood: Understood::Content {
            api: Api::Chat,
            model: Some("m".into()),
            source: TokenSource::Local,
            degraded: None,
            prompts: 1,
            reads_cache: true,
        },
        id: id(0),
        name: EndpointName::new("ns", "a"),
        address: "10.0.0.1:8000".parse().unwrap(),
        rank: Some(1),
        prompt: TokenCount::new(100),
        cached: TokenCount::new(64),
        queued: TokenCount::new(100),
        price: 1.5,
        guards_overruled: false,
        considered: vec![
            candidate(0, None),
            candidate(1, Some(Exclusion::KvUsage)),
            candidate(2, None),
        ],
        took: Duration::from_micros(250),
    }
}

fn request_ids(decisions: &Decisions) -> Vec<String> {
    let of = |record: &Arc<Record>| record.picked.request_id.clone().unwrap().into();
    decisions.latest(9).iter().map(of).collect()
}

#[test]
fn the_last_ones_are_kept_newest_first() {
    let decisions = Decisions::new(2);
    for request_id in ["a", "b", "c"] {
        decisions.push(picked(request_id));
    }
    assert_eq!(request_ids(&decisions), ["c", "b"]);
    assert_eq!(decisions.latest(1).len(), 1);
}

#[test]
fn a_log_of_none_keeps_none_and_the_stream_still_has_its_record() {
    let decisions = Decisions::new(0);
    let record = decisions.push(picked("a"));
    record.note(|outcome| outcome.status = Some(200));
    assert_eq!(record.outcome().status, Some(200));
    assert!(decisions.latest(9).is_empty());
}

#[test]
fn every_number_is_in_the_json_and_the_outcome_comes_later() {
    let decisions = Decisions::new(8);
    let record = decisions.push(picked("r"));
    let name = |endpoint: EndpointId| (endpoint.slot == 1).then(|| EndpointName::new("ns", "b"));
    let before = decisions.to_json(9, name);
    assert_eq!(before[0]["outcome"]["ended"], Value::Null);
    record.note(|outcome| {
        *outcome = Outcome {
            status: Some(200),
            served_by: Some("10.0.0.2:8000".parse().unwrap()),
            first_data: Some(Duration::from_millis(12)),
            reported_prompt: Some(100),
            reported_cached: Some(48),
            prediction: Some(Prediction::ServedElsewhere),
            ended: Some(Ended::Completed),
        };
    });
    let candidate = |endpoint, excluded: Value| {
        json!({
            "endpoint": endpoint, "cached_tokens": 64, "cached_below_tokens": 16, "queued_tokens": 100, "in_flight": 3,
            "cost_tokens": 136, "excluded": excluded,
        })
    };
    let expected = json!([{
        "time": "1970-01-01T00:00:00Z",
        "request_id": "r",
        "request": {
            "api": "chat", "model": "m", "token_source": "local", "degraded": null, "prompts": 1, "reads_cache": true,
        },
        "endpoint": "ns/a",
        "address": "10.0.0.1:8000",
        "rank": 1,
        "prompt_tokens": 100,
        "cached_tokens": 64,
        "cached_below_tokens": 16,
        "queued_tokens": 100,
        "price": 1.5,
        "guards_overruled": false,
        "pick_us": 250,
        "outcome": {
            "status": 200, "served_by": "10.0.0.2:8000", "first_data_ms": 12,
            "prompt_tokens": 100, "cached_tokens": 48, "prediction": "served_elsewhere", "ended": "completed",
        },
        "candidates": [
            candidate("ns/a", Value::Null),
            candidate("ns/b", "kv_usage".into()),
            candidate("left (2.0)", Value::Null),
        ],
    }]);
    assert_eq!(decisions.to_json(9, name), expected);
}

#[test]
fn a_clients_text_is_cut_between_characters() {
    assert_eq!(&*shortened("short"), "short");
    let long = "ä".repeat(100);
    assert_eq!(&*shortened(&long), "ä".repeat(MAX_TEXT_BYTES / 2));
    let shifted = format!("a{long}");
    assert_eq!(
        &*shortened(&shifted),
        format!("a{}", "ä".repeat(MAX_TEXT_BYTES / 2 - 1))
    );
}
