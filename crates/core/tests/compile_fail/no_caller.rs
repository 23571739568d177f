//! Something else is used as a caller.
//~ `Server` is not a `Caller`
//~ the `LocalClient` of a node

use callboard_core::Caller;

struct Server;

fn use_caller(_: &impl Caller) {}

fn main() {
    use_caller(&Server);
}
