//! Who may take a request, and why the others may not.
