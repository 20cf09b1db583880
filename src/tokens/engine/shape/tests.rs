use super::*;

fn entry() -> Entry {
    Entry {
        adapter: None,
        places: std::sync::Arc::default(),
        engines: Vec::new(),
        served_as: "served".into(),
        version: Some((0, 31)),
        max_model_len: Some(100),
    }
}

fn one(api: Api, body: &str) -> (String, Cut) {
    match prompts(api, &entry(), body.as_bytes()).as_deref() {
        Ok([Prompt::Ask(payload, cut)]) => (String::from_utf8(payload.clone()).unwrap(), *cut),
        other => panic!("not one payload: {other:?}"),
    }
}

#[track_caller]
fn check(api: Api, body: &str, expected: &str) {
    assert_eq!(one(api, body).0, expected);
}

#[test]
fn a_chat_is_handed_over_as_it_stands_under_a_name_the_engine_knows() {
    check(
        Api::Chat,
        r#"{"model":"alias","temperature":0,"messages":[{"role":"user", "content": [{"type":"image_url","image_url":{"url":"data:x"}}]}]}"#,
        r#"{"model":"served","messages":[{"role":"user", "content": [{"type":"image_url","image_url":{"url":"data:x"}}]}]}"#,
    );
    check(
        Api::Chat,
        r#"{"messages":[],"tools":[{"a":1.0}],"add_generation_prompt":false,"continue_final_message":true,
            "add_special_tokens":true,"chat_template":"{{x}}","chat_template_kwargs":{"z":1,"a":2},"mm_processor_kwargs":{},"n":2}"#,
        r#"{"model":"served","messages":[],"tools":[{"a":1.0}],"add_generation_prompt":false,"continue_final_message":true,"add_special_tokens":true,"chat_template":"{{x}}","chat_template_kwargs":{"z":1,"a":2},"mm_processor_kwargs":{}}"#,
    );
    check(
        Api::Chat,
        r#"{"messages":[],"tools":null,"chat_template":null,"chat_template_kwargs":null,"documents":null}"#,
        r#"{"model":"served","messages":[]}"#,
    );
    // A chat-shaped embedding.
    check(
        Api::Embeddings,
        r#"{"messages":[1]}"#,
        r#"{"model":"served","messages":[1]}"#,
    );
}

#[test]
fn bodies_of_other_apis_are_handed_over_as_the_chats_that_engines_make_of_them() {
    check(
        Api::Responses,
        r#"{"model":"alias","instructions":"be brief","reasoning":{"effort":"none"},
            "input":[{"role":"user","content":[{"type":"input_image","image_url":"data:x"}]},
                {"type":"function_call","call_id":"c","name":"f","arguments":"{\"b\": 1}"}]}"#,
        r#"{"model":"served","messages":[{"role":"system","content":"be brief"},{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]},{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"b\": 1}"}}]}],"tools":null,"add_generation_prompt":true,"continue_final_message":false,"chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"none"}}"#,
    );
    check(
        Api::Messages,
        r#"{"max_tokens":5,"system":[{"type":"text","text":"be brief"}],"tools":[{"name":"f","input_schema":{}}],
            "messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"z":1,"a":2.5}}]},
                {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"x"}]}]}"#,
        r#"{"model":"served","messages":[{"role":"system","content":"be brief"},{"role":"assistant","tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":2.5}"}}]},{"role":"tool","tool_call_id":"t","content":"x"}],"tools":[{"type":"function","function":{"name":"f","description":null,"parameters":{"type":"object"}}}],"add_generation_prompt":true,"continue_final_message":false,"chat_template_kwargs":{}}"#,
    );
}

#[test]
fn what_tokenize_does_not_know_becomes_template_arguments() {
    check(
        Api::Chat,
        r#"{"messages":[],"documents":[{"t":1}],"reasoning_effort":"none","chat_template_kwargs":{"a":1}}"#,
        r#"{"model":"served","messages":[],"chat_template_kwargs":{"a":1,"enable_thinking":false,"reasoning_effort":"none","documents":[{"t":1}]}}"#,
    );
    // The client's own word on thinking stands, and an old engine knows no such rule.
    check(
        Api::Chat,
        r#"{"messages":[],"reasoning_effort":"low","chat_template_kwargs":{"enable_thinking":false}}"#,
        r#"{"model":"served","messages":[],"chat_template_kwargs":{"enable_thinking":false,"reasoning_effort":"low"}}"#,
    );
    let old = Entry {
        version: Some((0, 20)),
        ..entry()
    };
    let body = br#"{"messages":[],"reasoning_effort":"low"}"#;
    let expected =
        r#"{"model":"served","messages":[],"chat_template_kwargs":{"reasoning_effort":"low"}}"#;
    let payload = Prompt::Ask(expected.into(), Cut::default());
    assert_eq!(prompts(Api::Chat, &old, body), Ok(vec![payload]));
}

#[test]
fn a_completion_is_asked_for_prompt_by_prompt() {
    check(
        Api::Completions,
        r#"{"model":"m","prompt":"a \"b\"","add_special_tokens":false}"#,
        r#"{"model":"served","prompt":"a \"b\"","add_special_tokens":false}"#,
    );
    check(
        Api::Embeddings,
        r#"{"input":["a"]}"#,
        r#"{"model":"served","prompt":"a"}"#,
    );
    let two = prompts(Api::Completions, &entry(), br#"{"prompt":["a","b"]}"#).unwrap();
    assert_eq!(two.len(), 2);
}

#[test]
fn token_ids_of_the_client_are_not_asked_for() {
    let of = |body: &str| prompts(Api::Completions, &entry(), body.as_bytes());
    assert_eq!(
        of(r#"{"prompt":[1,2,3]}"#),
        Ok(vec![Prompt::Ids(vec![1, 2, 3])])
    );
    assert_eq!(
        of(r#"{"prompt":[[1,2],[3]],"truncate_prompt_tokens":1}"#),
        Ok(vec![Prompt::Ids(vec![2]), Prompt::Ids(vec![3])])
    );
}

#[test]
fn what_has_no_form_is_said_to_have_none() {
    let of = |api, body: &str| prompts(api, &entry(), body.as_bytes()).unwrap_err();
    for body in [
        r#"{"input":[]}"#,
        r#"{"input":"a","previous_response_id":"r"}"#,
        r#"{"input":[{"type":"reasoning","summary":[],"encrypted_content":"x"}]}"#,
    ] {
        assert_eq!(
            of(Api::Responses, body),
            Degradation::NoEngineForm,
            "{body}"
        );
    }
    // The last depends on the template.
    for body in [
        r#"{"messages":[]}"#,
        r#"{"messages":[{"role":"user","content":"a"}],"thinking":{"type":"disabled"}}"#,
    ] {
        assert_eq!(of(Api::Messages, body), Degradation::NoEngineForm, "{body}");
    }
    for body in ["", "{}", "[]", r#"{"prompt":{}}"#, r#"{"prompt":[-1]}"#] {
        assert_eq!(
            of(Api::Completions, body),
            Degradation::NoEngineForm,
            "{body}"
        );
    }
    assert_eq!(
        of(Api::Chat, r#"{"prompt":"a"}"#),
        Degradation::NoEngineForm
    );
    let many = format!(r#"{{"prompt":[{}"a"]}}"#, r#""a","#.repeat(MAX_PROMPTS));
    assert_eq!(of(Api::Completions, &many), Degradation::ManyPrompts);
}

#[test]
fn truncation_keeps_the_side_that_the_engine_keeps() {
    let cut = |fields: &str| {
        let (_, cut) = one(Api::Completions, &format!(r#"{{"prompt":"a"{fields}}}"#));
        let ids: Vec<u32> = (0..200).collect();
        let kept = cut.apply(&ids);
        (kept.first().copied(), kept.len())
    };
    assert_eq!(cut(""), (Some(0), 200));
    assert_eq!(cut(r#","truncate_prompt_tokens":10"#), (Some(190), 10));
    assert_eq!(
        cut(r#","truncate_prompt_tokens":10,"truncation_side":"right""#),
        (Some(0), 10)
    );
    // Of a context of 100 this version leaves free what the answer may take.
    assert_eq!(cut(r#","truncate_prompt_tokens":-1"#), (Some(116), 84));
    let one_token = r#","truncate_prompt_tokens":-1,"max_tokens":1"#;
    assert_eq!(cut(one_token), (Some(101), 99));
    assert_eq!(cut(r#","truncate_prompt_tokens":1000"#), (Some(0), 200));
    assert_eq!(cut(r#","truncate_prompt_tokens":-7"#), (Some(0), 200));
}
