use super::*;
use serde_json::json;

fn valid() -> Value {
    json!({
        "format": "cmwq-rows", "version": 1,
        "machine": {"cpus": 2},
        "settings": {"rounds": 7, "scopes": ["cache"], "fio": false},
        "rows": [{"scenario": "high", "setting": "cache", "bandwidth_mib_s": {"mean": 1.0, "stdev": 0.0}}],
        "mix": {"warm": {}}
    })
}

/// Replaces the member at the JSON pointer and returns where the problems are.
fn with(pointer: &str, new: Value) -> Vec<String> {
    let mut value = valid();
    match value.pointer_mut(pointer) {
        Some(place) => *place = new,
        None => {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            value.pointer_mut(parent).unwrap()[name] = new;
        }
    }
    validate(&value).into_iter().map(|p| p.path).collect()
}

#[test]
fn the_plain_form_is_valid() {
    assert_eq!(validate(&valid()), []);
}

#[test]
fn each_wrong_member_is_named() {
    for (pointer, new, path) in [
        ("/format", json!("other"), "$.format"),
        ("/version", json!(2), "$.version"),
        ("/version", json!("1"), "$.version"),
        ("/machine/cpus", json!(0), "$.machine.cpus"),
        ("/machine/hostname", json!("x"), "$.machine.hostname"),
        ("/settings/rounds", json!({"a": 1}), "$.settings.rounds"),
        ("/rows", json!({}), "$.rows"),
        ("/rows/0", json!(3), "$.rows[0]"),
        ("/rows/0/scenario", json!(""), "$.rows[0].scenario"),
        ("/rows/0/setting", json!(null), "$.rows[0].setting"),
        (
            "/rows/0/bandwidth_mib_s/stdev",
            json!(-1),
            "$.rows[0].bandwidth_mib_s.stdev",
        ),
        (
            "/rows/0/bandwidth_mib_s",
            json!({"mean": 1}),
            "$.rows[0].bandwidth_mib_s.stdev",
        ),
        (
            "/rows/0/bandwidth_mib_s",
            json!(1),
            "$.rows[0].bandwidth_mib_s",
        ),
        (
            "/rows/0/items_per_s",
            json!({"mean": 1, "stdev": 0, "mode": 1}),
            "$.rows[0].items_per_s.mode",
        ),
        (
            "/rows/0/cpu_util_percent",
            json!(99.0),
            "$.rows[0].cpu_util_of",
        ),
        (
            "/rows/0/cpu_util_of",
            json!("socket"),
            "$.rows[0].cpu_util_of",
        ),
        (
            "/rows/0/started_in_pod_percent",
            json!(101),
            "$.rows[0].started_in_pod_percent",
        ),
        (
            "/rows/0/migrations_per_item",
            json!(-0.5),
            "$.rows[0].migrations_per_item",
        ),
        (
            "/rows/0/latency_us",
            json!({"p50": 3, "p99": 2}),
            "$.rows[0].latency_us.p99",
        ),
        (
            "/rows/0/latency_us",
            json!({"p77": 3}),
            "$.rows[0].latency_us.p77",
        ),
        (
            "/rows/0/handover_us",
            json!({"p50": "3"}),
            "$.rows[0].handover_us.p50",
        ),
        ("/rows/0/hog", json!(1), "$.rows[0].hog"),
        ("/rows/0/mechanism", json!("guess"), "$.rows[0].mechanism"),
        ("/rows/0/speed", json!(1), "$.rows[0].speed"),
        (
            "/rows/0/figures",
            json!({"x": {"mean": 1, "stdev": 0}}),
            "$.rows[0].figures.x.unit",
        ),
        (
            "/rows/0/figures",
            json!({"x": {"unit": "ns", "mean": 1}}),
            "$.rows[0].figures.x.stdev",
        ),
        (
            "/rows/0/items_per_s",
            json!({"mean": 1, "stdev": 0, "n": 1.5}),
            "$.rows[0].items_per_s.n",
        ),
        ("/machine/memory_bytes", json!(-4), "$.machine.memory_bytes"),
        ("/verdicts", json!([{}]), "$.verdicts[0].name"),
        ("/versions", json!({"cmwq": 1}), "$.versions.cmwq"),
    ] {
        let problems = with(pointer, new.clone());
        assert!(
            problems.contains(&path.to_owned()),
            "{pointer} = {new}: {problems:?}"
        );
    }
}

#[test]
fn missing_members_are_named() {
    for member in ["format", "version", "machine", "settings", "rows"] {
        let mut value = valid();
        value.as_object_mut().unwrap().remove(member);
        let problems = validate(&value);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].path, format!("$.{member}"));
    }
    for odd in [json!(null), json!([]), json!("x")] {
        assert_eq!(validate(&odd).len(), 1);
    }
}

#[test]
fn whatever_the_crate_writes_is_valid() {
    let document = crate::rows::tests::full();
    assert_eq!(validate(&serde_json::to_value(&document).unwrap()), []);
}

fn any_json() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(|v| json!(v)),
        any::<f64>().prop_map(|v| json!(v)),
        "[a-z_]{0,12}".prop_map(Value::String),
    ];
    let key = prop_oneof![
        Just("rows".to_owned()),
        Just("format".to_owned()),
        Just("machine".to_owned()),
        Just("figures".to_owned()),
        Just("latency_us".to_owned()),
        Just("verdicts".to_owned()),
        "[a-z]{0,6}"
    ];
    leaf.prop_recursive(5, 60, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest::proptest! {
    #[test]
    fn any_json_is_judged_without_a_panic_and_valid_means_readable(value in any_json()) {
        if validate(&value).is_empty() {
            proptest::prop_assert!(serde_json::from_value::<crate::Document>(value).is_ok());
        }
    }

    /// Put anything in the place of one member of a valid document: valid must still mean readable.
    #[test]
    fn valid_means_readable(value in any_json(), place in 0usize..16) {
        let mut document = serde_json::to_value(crate::rows::tests::full()).unwrap();
        let row = document["rows"][0].as_object_mut().unwrap();
        let name = row.keys().nth(place % row.len()).unwrap().clone();
        row.insert(name, value);
        if validate(&document).is_empty() {
            proptest::prop_assert!(serde_json::from_value::<crate::Document>(document.clone()).is_ok(), "{}", document);
        }
    }
}
