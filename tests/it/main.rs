//! One integration binary (one link on few cores); a line on each part.

// Tells clippy that all of this is test code, so that helpers may expect and index like the tests do.
#![cfg(test)]

// Real parts and doubles that the tests below stand on.
mod support;

// --- Plumbing: parts of the process against doubles and the simulated engine (which shares our code).

// The Helm chart, rendered by the real helm.
mod chart;
// The pages with their protection on.
mod access;
// The settings file and its documentation.
mod config;
// The flags of other endpoint pickers, given to the program itself.
mod flags;
// The world coming in: the endpoints file, probe and reports against doubles of engines.
mod feeds;
// Model files from a stub of the hub: which are asked for, when again, and by whom.
mod hub;
// The image, as a file for Docker and packed without it, and the binary alone in it.
mod image;
// The pool from Kubernetes, against a double of its API server.
mod kube_feed;
// The documentation of metrics names those that there are.
mod metrics;
// The whole process on port 0: pages, shutdown, errors at start.
mod serve;
// Token ids by the three ways, against a double of an engine.
mod tokens;
// The server half of ext-proc, driven by a client over real sockets.
mod wire;
// The simulated engine's HTTP and event sides.
mod engine;
// The doctor, against engines that lack something.
mod check;
// The shipped Envoy configuration, and the support itself.
mod gateway;
// The whole on one machine, as `warmpath demo` runs it.
mod demo;
// The simulator's page, in a real browser.
mod simulate_report;

// --- The whole path: engines, picker and a real Envoy.

// Claims about what a client sees.
mod path;
// What goes wrong with cache state, fault by fault: what is foreseen before, during and after.
mod faults;
// Mixed traffic and random faults for a while: what is left at the end.
mod soak;
// The same with the pool in Kubernetes: a real API server, the chart, the examples.
mod kubernetes;

// --- Parity: our work against what real engines and other implementations recorded.

// Our ids against those that real engines report.
mod golden_captures;
// Recorded events of real engines, read in order, against the cached tokens that they reported.
mod golden_cache;
// Conversions of bodies to chats, against those of vLLM's releases.
mod golden_conversions;
// Traces of real traffic, replayed by the simulator.
mod simulate_traces;
// Reads the data that is shared between projects and too big, or not free enough, to carry.
mod golden_data;
// Recorded bodies of real clients.
mod golden_requests;
// Chat templates against transformers and Python's Jinja.
mod golden_templates;
// Tokenizers against vectors made elsewhere.
mod golden_tokenizers;
// What the simulator shows of the policies.
mod simulate;
// The simulated engine's times against measured runs of vLLM.
mod simulate_calibration;
