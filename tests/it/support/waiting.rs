//! How long is something waited for that must happen? Until it has, or for so long that no busy machine explains it.

use std::time::Duration;

/// Longest wait for something that must happen. Everything here takes milliseconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Looks every few milliseconds until `look` finds something; fails with `what` after [`PATIENCE`].
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, looking).await;
    found.unwrap_or_else(|_| panic!("not in {PATIENCE:?}: {what}"))
}

/// The same for what can be seen at once.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, async || holds().then_some(())).await;
}
