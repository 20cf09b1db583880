//! What did a service account ask of the API server, and what was it answered?

use std::collections::BTreeSet;

use serde_json::Value;

use super::Cluster;

/// One request as the API server's audit log has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Audited {
    pub(crate) verb: String,
    /// `resource.group`, or the resource alone in the core group; a path for what is no resource.
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) code: u64,
}

impl Cluster {
    /// The different requests of a user so far. The log is written before a request is answered.
    pub(crate) fn audited(&self, user: &str) -> BTreeSet<Audited> {
        let log = std::fs::read_to_string(self.file("audit.log")).expect("the audit log");
        // The last line may be under way.
        let (whole, _) = log.rsplit_once('\n').unwrap_or_default();
        let events = whole.lines().map(|line| {
            let event: Value = serde_json::from_str(line).expect("an audit event is JSON");
            event
        });
        events
            .filter(|event| event["user"]["username"] == user)
            .map(|event| audited(&event))
            .collect()
    }
}

fn audited(event: &Value) -> Audited {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let resource = match (text(&object["resource"]), text(&object["apiGroup"])) {
        (none, _) if none.is_empty() => text(&event["requestURI"]),
        (resource, group) if group.is_empty() => resource,
        (resource, group) => format!("{resource}.{group}"),
    };
    Audited {
        verb: text(&event["verb"]),
        resource,
        namespace: text(&object["namespace"]),
        code: event["responseStatus"]["code"]
            .as_u64()
            .expect("an answer has a code"),
    }
}
