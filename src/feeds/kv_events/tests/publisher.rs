//! An engine's publisher on loopback, as a script: what it sends live, what its ring holds,
//! and how it misbehaves when asked for a replay.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use rmp::encode as mp;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use zeromq::{RouterSocket, Socket, SocketEvent, SocketRecv, SocketSend, XPubSocket, ZmqMessage};

use super::Source;

/// Longest wait for anything in these tests; reached only when something is wrong.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);

/// How the replay socket behaves.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// What the engine still remembers.
    pub(super) ring: Vec<(u64, Bytes)>,
    /// Replies carry the topic (vLLM from 0.26 on).
    pub(super) with_topic: bool,
    /// The end marker is never sent.
    pub(super) no_marker: bool,
    /// Each reply stops after so many batches, without the marker.
    pub(super) at_most: Option<usize>,
    /// Requests are not answered at all.
    pub(super) mute: bool,
    /// Requests are not answered until this is unset.
    pub(super) held_back: bool,
    /// Each request is answered out of another life.
    pub(super) reborn: bool,
    /// The numbers asked for so far.
    pub(super) asked: Vec<u64>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            ring: Vec::new(),
            with_topic: true,
            no_marker: false,
            at_most: None,
            mute: false,
            held_back: false,
            reborn: false,
            asked: Vec::new(),
        }
    }
}

/// A publisher with its two sockets. Stops when dropped.
pub(super) struct Publisher {
    pub(super) live: String,
    pub(super) replay: String,
    script: Arc<Mutex<Script>>,
    changed: watch::Sender<()>,
    subscribers: watch::Receiver<usize>,
    send: mpsc::Sender<ZmqMessage>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Publisher {
    /// Starts on free ports.
    pub(super) async fn start(script: Script) -> Self {
        Self::start_at("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", script).await
    }

    /// Where it is, as an engine would tell.
    pub(super) fn source(&self) -> Source {
        Source {
            rank: 0,
            live: self.live.clone(),
            replay: Some(self.replay.clone()),
            known: true,
            ..Source::default()
        }
    }

    /// Starts on these ports, which a former publisher may still be giving up.
    pub(super) async fn start_at(live: &str, replay: &str, script: Script) -> Self {
        let mut xpub = XPubSocket::new();
        let live = bind(&mut xpub, live).await;
        let mut router = RouterSocket::new();
        let replay = bind(&mut router, replay).await;
        let script = Arc::new(Mutex::new(script));
        let (changed, changes) = watch::channel(());
        let (subscribed, subscribers) = watch::channel(0);
        let (send, messages) = mpsc::channel(1024);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(publish(xpub, messages, subscribed, stop.clone()));
        let answering = answer(router, Arc::clone(&script), changed.clone(), changes);
        tasks.spawn(stop.clone().run_until_cancelled_owned(answering).map(drop));
        Self {
            live,
            replay,
            script,
            changed,
            subscribers,
            send,
            stop,
            tasks,
        }
    }

    /// Ends: connections close, the ports become free. Its addresses are given back.
    pub(super) async fn stop(self) -> (String, String) {
        let Self {
            live,
            replay,
            stop,
            tasks,
            ..
        } = self;
        stop.cancel();
        tasks.join_all().await;
        (live, replay)
    }

    pub(super) fn script<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        let result = change(&mut self.script.lock());
        self.changed.send_replace(());
        result
    }

    pub(super) fn asked(&self) -> Vec<u64> {
        self.script.lock().asked.clone()
    }

    /// Waits until the replay socket has been asked `n` times.
    pub(super) async fn asked_times(&self, n: usize) {
        let mut changes = self.changed.subscribe();
        let asked = async {
            while self.script.lock().asked.len() < n {
                changes.changed().await.expect("the publisher runs");
            }
        };
        tokio::time::timeout(DEADLINE, asked)
            .await
            .expect("the replay socket is asked");
    }

    /// Waits until somebody subscribed.
    pub(super) async fn subscribed(&mut self) {
        self.subscribed_times(1).await;
    }

    /// Waits until so many came.
    pub(super) async fn subscribed_times(&mut self, times: usize) {
        let subscribed = self.subscribers.wait_for(|n| *n >= times);
        tokio::time::timeout(DEADLINE, subscribed)
            .await
            .expect("a subscriber comes")
            .expect("the publisher runs");
    }

    /// Sends a batch live only; the ring does not get it.
    pub(super) async fn send_live(&self, (seq, payload): (u64, Bytes)) {
        self.send_raw(vec![
            Bytes::from_static(b"kv@ip@model"),
            Bytes::copy_from_slice(&seq.to_be_bytes()),
            payload,
        ])
        .await;
    }

    pub(super) async fn send_raw(&self, frames: Vec<Bytes>) {
        let message = ZmqMessage::try_from(frames).expect("frames");
        self.send.send(message).await.expect("the publisher runs");
    }

    /// Sends frames live, unless too many wait to be sent; whether it did.
    pub(super) fn send_or_drop(&self, frames: Vec<Bytes>) -> bool {
        let message = ZmqMessage::try_from(frames).expect("frames");
        self.send.try_send(message).is_ok()
    }

    /// What an engine does: remembers the batch and sends it.
    pub(super) async fn publish(&self, batch: (u64, Bytes)) {
        self.script(|script| script.ring.push(batch.clone()));
        self.send_live(batch).await;
    }
}

async fn bind(socket: &mut impl Socket, address: &str) -> String {
    let bound = async {
        loop {
            match socket.bind(address).await {
                Ok(endpoint) => return endpoint.to_string(),
                // The former publisher's listener ends in a task of its own.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    tokio::time::timeout(DEADLINE, bound)
        .await
        .expect("the port becomes free")
}

/// Sends what it is given. When stopped it closes its connections one by one, since this
/// kind of socket leaves them open when it is dropped.
async fn publish(
    mut xpub: XPubSocket,
    mut messages: mpsc::Receiver<ZmqMessage>,
    subscribed: watch::Sender<usize>,
    stop: CancellationToken,
) {
    let mut events = xpub.monitor();
    let mut peers = Vec::new();
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(message) => xpub.send(message).await.expect("sent"),
                None => break,
            },
            subscription = xpub.recv() => {
                if subscription.is_ok() {
                    subscribed.send_modify(|n| *n += 1);
                }
            }
            event = events.next() => {
                if let Some(SocketEvent::Accepted(_, peer)) = event {
                    peers.push(peer);
                }
            }
            () = stop.cancelled() => break,
        }
    }
    let backend = xpub.backend();
    for peer in &peers {
        backend.peer_disconnected(peer);
    }
    xpub.close().await;
}

async fn answer(
    mut router: RouterSocket,
    script: Arc<Mutex<Script>>,
    changed: watch::Sender<()>,
    mut changes: watch::Receiver<()>,
) {
    while let Ok(request) = router.recv().await {
        let frames = request.into_vec();
        // As vLLM: exactly identity, empty delimiter, number; anything else is ignored.
        let [identity, delimiter, from] = &frames[..] else {
            continue;
        };
        let Ok(from) = <[u8; 8]>::try_from(from.as_ref()).map(u64::from_be_bytes) else {
            continue;
        };
        if !delimiter.is_empty() {
            continue;
        }
        script.lock().asked.push(from);
        changed.send_replace(());
        while script.lock().held_back {
            if changes.changed().await.is_err() {
                return;
            }
        }
        let mut script = script.lock().clone();
        if script.reborn {
            let life = script.asked.len() as u64;
            script.ring = (0..3).map(|seq| batch(life, seq)).collect();
        }
        for frames in replies(&script, from) {
            let mut message = ZmqMessage::from(identity.clone());
            for frame in frames {
                message.push_back(frame);
            }
            // Who asked may be gone.
            drop(router.send(message).await);
        }
    }
}

fn replies(script: &Script, from: u64) -> Vec<Vec<Bytes>> {
    if script.mute {
        return Vec::new();
    }
    let reply = |seq: u64, payload: Bytes, topic: &'static str| {
        let mut frames = vec![Bytes::new()];
        if script.with_topic {
            frames.push(Bytes::from_static(topic.as_bytes()));
        }
        frames.push(Bytes::copy_from_slice(&seq.to_be_bytes()));
        frames.push(payload);
        frames
    };
    let wanted = script.ring.iter().filter(|(seq, _)| *seq >= from);
    let mut replies: Vec<_> = wanted
        .map(|(seq, payload)| reply(*seq, payload.clone(), "kv@ip@model"))
        .collect();
    match script.at_most {
        Some(n) if replies.len() > n => replies.truncate(n),
        _ if script.no_marker => {}
        _ => replies.push(reply(u64::MAX, Bytes::new(), "")),
    }
    replies
}

/// The batch `seq` of an engine's `life`: one block stored, its hash `life * 1000 + seq`.
pub(super) fn batch(life: u64, seq: u64) -> (u64, Bytes) {
    let mut out = mp::ByteBuf::new();
    mp::write_array_len(&mut out, 3).expect("write");
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    mp::write_f64(&mut out, (life * 1_000_000 + seq) as f64).expect("write");
    mp::write_array_len(&mut out, 1).expect("write");
    mp::write_array_len(&mut out, 5).expect("write");
    mp::write_str(&mut out, "BlockStored").expect("write");
    mp::write_array_len(&mut out, 1).expect("write");
    mp::write_uint(&mut out, life * 1000 + seq).expect("write");
    mp::write_nil(&mut out).expect("write");
    mp::write_array_len(&mut out, 1).expect("write");
    mp::write_uint(&mut out, 7).expect("write");
    mp::write_uint(&mut out, 1).expect("write");
    mp::write_uint(&mut out, 0).expect("write");
    (seq, Bytes::from(out.into_vec()))
}

/// A batch whose only event says that the cache was dropped.
pub(super) fn clear_batch(seq: u64) -> (u64, Bytes) {
    let mut out = mp::ByteBuf::new();
    mp::write_array_len(&mut out, 2).expect("write");
    mp::write_f64(&mut out, 5.0).expect("write");
    mp::write_array_len(&mut out, 1).expect("write");
    mp::write_array_len(&mut out, 1).expect("write");
    mp::write_str(&mut out, "AllBlocksCleared").expect("write");
    (seq, Bytes::from(out.into_vec()))
}
