//! Wires the whole process and runs it.
