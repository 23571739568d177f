//! An actor on one node is asked by its name from another node; then its node goes away.
//!
//! `cargo run --example actors_over_nodes`: the node `bank` publishes the actor `account`, the node `shop` asks it.
//! Both are in this process and talk over QUIC, as they would between machines.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;

use callboard::actor::{Actor, ActorContext, ActorSpec, AskError, Question, RemoteRef, ReplyPort};
use callboard::net::{Cluster, Identity, NetConfig, QuicEdge, StaticView};
use callboard::prelude::*;
use serde::{Deserialize, Serialize};

type Problem = Box<dyn std::error::Error>;

const SECOND: Duration = Duration::from_secs(1);

/// Pays out, unless there is too little. The answer is what is left.
#[derive(Serialize, Deserialize)]
struct PayOut {
    amount: u64,
}

impl Question for PayOut {
    const NAME: &str = "pay_out";
    type Answer = u64;
}

/// Pays in. Nobody waits for an answer.
#[derive(Serialize, Deserialize)]
struct PayIn {
    amount: u64,
}

impl Question for PayIn {
    const NAME: &str = "pay_in";
    type Answer = ();
}

/// What other actors of the node may say to an account. `Close` is not for other nodes.
enum Order {
    PayIn(PayIn),
    PayOut(PayOut, ReplyPort<u64>),
    Close,
}

struct Account {
    balance: u64,
}

impl Actor for Account {
    type Message = Order;

    async fn handle(&mut self, order: Order, context: &ActorContext<Self>) -> Result<(), Failure> {
        match order {
            Order::PayIn(PayIn { amount }) => self.balance += amount,
            Order::PayOut(PayOut { amount }, answer) => match self.balance.checked_sub(amount) {
                Some(rest) => {
                    self.balance = rest;
                    answer.send(rest);
                }
                None => answer.fail(Failure::new("not enough money").with_status(402)),
            },
            Order::Close => context.stop(),
        }
        Ok(())
    }
}

/// For one user on one machine. Between machines: `callboard cluster init`, and `Identity::load`.
fn edge() -> Result<QuicEdge, Problem> {
    Ok(QuicEdge::bind("127.0.0.1:0".parse()?, Identity::development()?, NetConfig::default())?)
}

#[tokio::main]
async fn main() -> Result<(), Problem> {
    // Only what an actor accepts can be reached from other nodes.
    let account =
        ActorSpec::new("account", |_| Account { balance: 10 }).accepts_tell(Order::PayIn).accepts(Order::PayOut);
    let orders = account.reference();
    let (bank, bank_edge) = (App::new().actor(account).start().await?, edge()?);
    bank_edge.open(bank.client());

    let (shop, shop_edge) = (App::new().start().await?, edge()?);
    shop_edge.open(shop.client());
    shop.join(Cluster::start(&shop_edge, Arc::new(StaticView::try_new([bank_edge.address()])?)))?;

    // The reference is good before the nodes are connected. Until then the actor is unreachable.
    let account = shop.remote_actor("account");
    tokio::time::timeout(20 * SECOND, until_reached(&account)).await?;

    account.tell(SECOND, PayIn { amount: 5 }).await?;
    assert_eq!(account.ask(SECOND, PayOut { amount: 12 }).await?, 3);
    let refused = account.ask(SECOND, PayOut { amount: 12 }).await;
    assert!(matches!(&refused, Err(AskError::Failed(failure)) if failure.message() == "not enough money"));
    println!("paid 12 of 15 from another node, and 12 more were refused");

    // The actor ends: it is published no more. What was not handled is told from what may have been.
    orders.tell(Order::Close)?;
    let gone = loop {
        match account.ask(SECOND, PayOut { amount: 0 }).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert!(!gone.was_taken() || gone == AskError::Lost, "{gone}");
    println!("then: {gone}");
    Ok(())
}

async fn until_reached(account: &RemoteRef) {
    while let Err(AskError::Unreachable { .. }) = account.ask(SECOND, PayOut { amount: 0 }).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
