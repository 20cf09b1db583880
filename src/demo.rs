//! The main job on one machine in one command.
