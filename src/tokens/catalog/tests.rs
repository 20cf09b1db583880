use super::*;
use std::time::Duration;

fn settings() -> Settings {
    Settings {
        models: BTreeMap::new(),
        directory: None,
        hub: true,
        cache_directory: None,
        cache_bytes: 0,
        engine_timeout: Duration::from_secs(1),
        engine_concurrency: 1,
        bytes_per_token: 4.0,
        canary_interval: Duration::ZERO,
    }
}

fn with_model(mut settings: Settings, name: &str, folder: &str) -> Settings {
    let source = ModelSource::Directory(folder.into());
    settings.models.insert(name.to_owned(), source);
    settings
}

fn with_directory(mut settings: Settings, directory: &str) -> Settings {
    settings.directory = Some(directory.into());
    settings
}

fn without_hub(mut settings: Settings) -> Settings {
    settings.hub = false;
    settings
}

fn engine(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn base(id: &str, root: Option<&str>) -> ServedModel {
    ServedModel {
        id: id.to_owned(),
        root: root.map(str::to_owned),
        parent: None,
        max_model_len: Some(8192),
    }
}

fn adapter(id: &str, parent: &str) -> ServedModel {
    ServedModel {
        id: id.to_owned(),
        root: Some("/adapters/x".to_owned()),
        parent: Some(parent.to_owned()),
        max_model_len: None,
    }
}

/// A catalog in which engine 1, 2, … serves the first, second, … list.
fn catalog(engines: &[&[ServedModel]]) -> Catalog {
    let mut catalog = Catalog::default();
    for (port, models) in (1..).zip(engines) {
        assert!(catalog.observe(engine(port), models.to_vec(), Some((0, 31))));
    }
    catalog
}

/// Where the tokenizer of base model `id` with `root` is looked for, in words.
#[track_caller]
fn check_places(settings: &Settings, id: &str, root: Option<&str>, expected: &[&str]) {
    let table = catalog(&[&[base(id, root)]]).table(settings);
    let entry = table.resolve(Some(id)).expect("a served name is known");
    let places: Vec<String> = entry.places.iter().map(ToString::to_string).collect();
    assert_eq!(places, expected, "{id} {root:?}");
}

#[test]
fn places_come_in_the_promised_order() {
    let plain = settings();
    check_places(&plain, "m", None, &[]);
    check_places(&plain, "m", Some("Qwen/Qwen3-4B"), &["hub:Qwen/Qwen3-4B"]);
    check_places(&plain, "m", Some("/models/qwen"), &["/models/qwen"]);
    check_places(&without_hub(settings()), "m", Some("Qwen/Qwen3-4B"), &[]);

    let directory = with_directory(settings(), "/d");
    check_places(
        &directory,
        "m",
        Some("Qwen/Qwen3-4B"),
        &[
            "/d/m",
            "/d/Qwen3-4B",
            "/d/Qwen--Qwen3-4B",
            "hub:Qwen/Qwen3-4B",
        ],
    );
    check_places(
        &directory,
        "Qwen3-4B",
        Some("/models/Qwen3-4B/"),
        &["/d/Qwen3-4B", "/d/models--Qwen3-4B", "/models/Qwen3-4B/"],
    );

    // A configured source is the only one.
    let configured = with_model(directory, "m", "/mine");
    check_places(&configured, "m", Some("Qwen/Qwen3-4B"), &["/mine"]);
    check_places(&configured, "other", None, &["/d/other"]);
}

#[test]
fn engines_name_no_folder_outside_the_directory_and_nothing_odd_for_the_hub() {
    let directory = with_directory(settings(), "/d");
    check_places(
        &directory,
        "../etc",
        Some("a/../../b"),
        &["/d/b", "/d/a--..--..--b"],
    );
    check_places(&directory, "/etc", None, &[]);
    check_places(&directory, "..", Some(".."), &[]);
    for odd in [
        "org",
        "org/name/more",
        "./name",
        "../name",
        "org/..",
        "org/-x",
        "org/na me",
        "org/name?x",
        "s3://bucket/name",
        "org/",
        "/",
    ] {
        let table = catalog(&[&[base("m", Some(odd))]]).table(&settings());
        let places = &table.resolve(Some("m")).unwrap().places;
        let asks_hub = places.iter().any(|p| matches!(p, ModelSource::Hub(_)));
        assert!(!asks_hub, "{odd} is asked from the hub");
    }
}

#[test]
fn an_adapter_is_tokenized_as_its_base() {
    let models = [base("qwen", Some("Qwen/Qwen3-4B")), adapter("sql", "qwen")];
    let other = [base("qwen", Some("Qwen/Qwen3-4B"))];
    let table = catalog(&[&models, &other]).table(&settings());
    let entry = table.resolve(Some("sql")).unwrap();
    assert_eq!(entry.adapter.as_deref(), Some("sql"));
    assert_eq!(&*entry.served_as, "qwen");
    assert_eq!(entry.engines, [engine(1), engine(2)]);
    assert_eq!(entry.places, table.resolve(Some("qwen")).unwrap().places);
    assert_eq!(entry.max_model_len, Some(8192));
    assert_eq!(table.resolve(Some("qwen")).unwrap().adapter, None);
}

#[test]
fn an_adapter_whose_parent_is_a_path_belongs_to_its_engines_only_base() {
    let models = [base("qwen", Some("/m")), adapter("sql", "/m")];
    let table = catalog(&[&models]).table(&settings());
    assert_eq!(&*table.resolve(Some("sql")).unwrap().served_as, "qwen");

    let orphan = [adapter("sql", "gone")];
    let table = catalog(&[&orphan]).table(&settings());
    let entry = table.resolve(Some("sql")).unwrap();
    assert_eq!(&*entry.served_as, "sql");
    assert_eq!(entry.engines, [engine(1)]);
}

#[test]
fn a_configured_adapter_has_its_own_tokenizer_and_is_still_an_adapter() {
    let settings = with_model(settings(), "sql", "/sql");
    let models = [base("qwen", Some("Qwen/Qwen3-4B")), adapter("sql", "qwen")];
    let table = catalog(&[&models]).table(&settings);
    let entry = table.resolve(Some("sql")).unwrap();
    assert_eq!(*entry.places, [ModelSource::Directory("/sql".into())]);
    assert_eq!(entry.adapter.as_deref(), Some("sql"));
}

#[test]
fn an_unknown_name_means_the_one_base_model_or_nothing() {
    let known = |engines: &[&[ServedModel]]| {
        let table = catalog(engines).table(&settings());
        let of = |name| {
            let entry = table.resolve(name);
            entry.map(|entry| entry.served_as.to_string())
        };
        assert_eq!(of(None), of(Some("never heard of")));
        of(None)
    };
    assert_eq!(known(&[]), None);
    assert_eq!(known(&[&[base("a", Some("o/a"))]]).as_deref(), Some("a"));
    // Two names for the same weights, as with several --served-model-name.
    let twice = [base("a", Some("o/a")), base("b", Some("o/a"))];
    assert_eq!(known(&[&twice]).as_deref(), Some("a"));
    // An adapter does not make a second base.
    let adapted = [base("a", Some("o/a")), adapter("x", "a")];
    assert_eq!(known(&[&adapted, &adapted]).as_deref(), Some("a"));
    // One name whose weights are being replaced.
    assert_eq!(
        known(&[&[base("a", Some("o/a"))], &[base("a", Some("o/a2"))]]).as_deref(),
        Some("a")
    );
    assert_eq!(
        known(&[&[base("a", Some("o/a"))], &[base("b", Some("o/b"))]]),
        None
    );
    assert_eq!(known(&[&[base("a", None)], &[base("b", None)]]), None);
}

#[test]
fn a_name_only_the_configuration_knows_is_served_by_the_pools_one_model() {
    let settings = with_model(settings(), "alias", "/alias");
    let table = catalog(&[&[base("a", Some("o/a"))]]).table(&settings);
    let entry = table.resolve(Some("alias")).unwrap();
    assert_eq!(*entry.places, [ModelSource::Directory("/alias".into())]);
    assert_eq!(&*entry.served_as, "a");
    assert_eq!(entry.engines, [engine(1)]);
    assert_eq!(entry.version, Some((0, 31)));

    // No engine says what it serves: the one configured model stands for every name.
    let table = catalog(&[&[], &[]]).table(&settings);
    assert_eq!(*table.resolve(None).unwrap().places, *entry.places);
    let two = with_model(settings, "second", "/second");
    assert!(catalog(&[]).table(&two).resolve(None).is_none());
}

#[test]
fn engines_that_differ_leave_the_version_open_and_the_shortest_context_counts() {
    let mut catalog = Catalog::default();
    let mut short = base("a", Some("o/a"));
    short.max_model_len = Some(1024);
    catalog.observe(engine(1), vec![base("a", Some("o/a"))], Some((0, 31)));
    catalog.observe(engine(2), vec![short], Some((0, 31)));
    let of = |catalog: &Catalog| {
        let table = catalog.table(&settings());
        let entry = table.resolve(Some("a")).unwrap();
        (entry.version, entry.max_model_len)
    };
    assert_eq!(of(&catalog), (Some((0, 31)), Some(1024)));
    catalog.observe(engine(3), vec![base("a", Some("o/a"))], Some((0, 20)));
    assert_eq!(of(&catalog), (None, Some(1024)));
    assert!(catalog.forget(engine(3)));
    assert!(catalog.forget(engine(2)));
    assert_eq!(of(&catalog), (Some((0, 31)), Some(8192)));
    catalog.observe(engine(2), vec![base("a", Some("o/a"))], None);
    assert_eq!(of(&catalog).0, None);
}

#[test]
fn the_same_word_twice_is_nothing_new() {
    let mut catalog = Catalog::default();
    let models = vec![base("a", None)];
    assert!(catalog.observe(engine(1), models.clone(), None));
    assert!(!catalog.observe(engine(1), models.clone(), None));
    assert!(catalog.observe(engine(1), models, Some((0, 31))));
    assert!(catalog.forget(engine(1)));
    assert!(!catalog.forget(engine(1)));
    assert!(catalog.table(&settings()).resolve(Some("a")).is_none());
}

#[test]
fn wanted_lists_each_list_of_places_once() {
    let settings = with_model(settings(), "mine", "/mine");
    let twice = [
        base("a", Some("o/a")),
        base("b", Some("o/a")),
        adapter("x", "a"),
    ];
    let wanted = catalog(&[&twice, &twice]).table(&settings).wanted();
    let words: Vec<String> = wanted.iter().map(|list| list[0].to_string()).collect();
    assert_eq!(words, ["/mine", "hub:o/a"]);
}
