//! Which requests are sent? Chats of a shared system prompt and a question of their own, the same for the same seed.

use bytes::{BufMut as _, Bytes, BytesMut};
use fastrand::Rng;

use super::text::Writer;

/// Questions begin anywhere in so many bytes of text; with their number in front no two are alike.
const POOL_BYTES: usize = 4 << 20;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of each request's text.
    pub(super) text_bytes: usize,
    /// Share of it that others have as well, 0 to 1.
    pub(super) shared: f64,
    /// Different shared parts.
    pub(super) prefixes: usize,
}

/// Makes request bodies.
pub(super) struct Workload {
    /// Each the body up to the question.
    beginnings: Vec<Bytes>,
    pool: String,
    question_bytes: usize,
}

impl Workload {
    pub(super) fn new(shape: Shape, model: &str, seed: u64) -> Self {
        let mut writer = Writer::new(seed);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a length is a length"
        )]
        let shared_bytes = (shape.text_bytes as f64 * shape.shared.clamp(0.0, 1.0)) as usize;
        let question_bytes = shape.text_bytes - shared_bytes;
        let model = serde_json::Value::from(model);
        let beginnings = (0..shape.prefixes.max(1)).map(|_| {
            let system = writer.text(shared_bytes);
            let beginning = format!(
                r#"{{"model":{model},"stream":true,"stream_options":{{"include_usage":true}},"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":""#
            );
            Bytes::from(beginning)
        });
        Self {
            beginnings: beginnings.collect(),
            pool: writer.text(POOL_BYTES.max(2 * question_bytes)),
            question_bytes,
        }
    }

    /// Different shared parts.
    pub(super) const fn prefixes(&self) -> usize {
        self.beginnings.len()
    }

    /// A request with this shared part; `number` makes it unlike any other.
    pub(super) fn body(&self, prefix: usize, number: u64, rng: &mut Rng) -> Bytes {
        const END: &[u8] = br#""}]}"#;
        let beginning = self.beginnings.get(prefix % self.beginnings.len());
        let beginning = beginning.map_or(&[][..], |bytes| bytes);
        let from = rng.usize(..=self.pool.len() - self.question_bytes);
        let question = self.pool.get(from..).unwrap_or_default().as_bytes();
        // Cut between the two bytes of a line break it would be another text, or none.
        let question = question.strip_prefix(b"n").unwrap_or(question);
        let question = question.get(..self.question_bytes).unwrap_or(question);
        let question = question.strip_suffix(b"\\").unwrap_or(question);
        let mut body = BytesMut::with_capacity(beginning.len() + question.len() + 32);
        body.put_slice(beginning);
        body.put_slice(format!("{number:08x}: ").as_bytes());
        body.put_slice(question);
        body.put_slice(END);
        body.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        text_bytes: 8_000,
        shared: 0.75,
        prefixes: 3,
    };

    fn contents(body: &Bytes) -> (String, String) {
        let body: serde_json::Value = serde_json::from_slice(body).unwrap();
        let content = |n: usize| body["messages"][n]["content"].as_str().unwrap().to_owned();
        (content(0), content(1))
    }

    #[test]
    fn requests_share_their_system_prompt_and_nothing_else() {
        let workload = Workload::new(SHAPE, "a \"model\"", 1);
        let mut rng = Rng::with_seed(1);
        for (prefix, number) in (0..200).zip(0..) {
            let body = workload.body(prefix, number, &mut rng);
            let other = workload.body(prefix + 3, number + 1000, &mut rng);
            let ((system, question), (same, another)) = (contents(&body), contents(&other));
            assert_eq!(system, same);
            assert_ne!(question, another);
            assert!(body.len().abs_diff(8_000) < 300, "{}", body.len());
        }
        let (first, second) = (workload.body(0, 0, &mut rng), workload.body(1, 0, &mut rng));
        assert_ne!(contents(&first).0, contents(&second).0);
    }

    #[test]
    fn all_or_nothing_may_be_shared() {
        for shared in [0.0, 1.0] {
            let workload = Workload::new(Shape { shared, ..SHAPE }, "m", 1);
            contents(&workload.body(0, 0, &mut Rng::with_seed(1)));
        }
    }
}
