//! Clients that keep asking while something happens to the fleet.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{MODEL, request_id};

/// Pause of a client between an answer and its next question: traffic, not a load test.
const PAUSE: Duration = Duration::from_millis(10);

/// One question and what came back.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) request_id: String,
    /// The status, or what went wrong on the connection.
    pub(crate) status: Result<u16, String>,
}

/// Clients at work until they are stopped.
pub(crate) struct Traffic {
    stop: CancellationToken,
    clients: JoinSet<Vec<Asked>>,
}

impl Traffic {
    /// So many clients ask for completions of these prompts, one after the other, each in an order of its own.
    pub(crate) fn start(to: SocketAddr, clients: usize, prompts: &[Vec<u32>]) -> Self {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let (stop, mut prompts) = (stop.clone(), prompts.to_vec());
            fastrand::shuffle(&mut prompts);
            tasks.spawn(async move {
                let client = reqwest::Client::new();
                let mut asked = Vec::new();
                for prompt in prompts.iter().cycle() {
                    if stop.is_cancelled() {
                        break;
                    }
                    let body = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 2 });
                    asked.push(ask(&client, to, &body).await);
                    stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                }
                asked
            });
        }
        Self {
            stop,
            clients: tasks,
        }
    }

    /// Lets every client have its last answer, and returns all.
    pub(crate) async fn stop(self) -> Vec<Asked> {
        self.stop.cancel();
        self.clients
            .join_all()
            .await
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Something was asked, and every answer is 200.
pub(crate) fn assert_all_served(asked: &[Asked]) {
    assert!(!asked.is_empty());
    let failed: Vec<_> = asked
        .iter()
        .filter(|asked| asked.status != Ok(200))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

async fn ask(client: &reqwest::Client, to: SocketAddr, body: &Value) -> Asked {
    let request_id = request_id();
    let request = client
        .post(format!("http://{to}/v1/completions"))
        .header("x-request-id", &request_id)
        .json(body);
    let answered = async {
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        // Only a body that came in full is an answer.
        answer.bytes().await?;
        Ok(status)
    };
    let status = answered
        .await
        .map_err(|error: reqwest::Error| format!("{error:?}"));
    Asked { request_id, status }
}
