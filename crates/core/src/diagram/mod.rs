//! An app before it runs, and a node while it runs, as pictures: pure functions over what is declared or described.

mod drawing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use self::drawing::{Drawing, Shape};
use crate::app::App;
use crate::id::{RouteName, StageName};
use crate::node::Description;
use crate::pipeline::{Graph, Join};
use crate::router::RouteSpec;
use crate::stage::StageSpec;

/// What an app would serve: its routes and the steps behind them.
///
/// ```
/// use callboard_core::{App, Pipeline, Stage};
///
/// let words = Stage::each("words", |text: &String| Ok(text.split(' ').count()));
/// let double = Stage::each("double", |n: &usize| Ok(n * 2)).max_batch_size(8).replicas(2);
/// let diagram = App::new().route("/count", Pipeline::from(words).then(double)).diagram();
/// assert_eq!(diagram.to_string(), "/count: words → double\n");
/// assert!(diagram.to_mermaid().contains(r#"["double · 2 replicas · batches of 8"]"#));
/// ```
#[derive(Clone, Debug)]
pub struct Diagram {
    routes: Vec<(RouteName, Graph<StageName>, Graph<String>)>,
}

impl App {
    /// A picture of the routes, to be printed or drawn.
    #[must_use]
    pub fn diagram(&self) -> Diagram {
        Diagram::for_routes(self.routes())
    }
}

impl Diagram {
    pub(crate) fn for_routes(routes: &[RouteSpec]) -> Self {
        let diagram = |route: &RouteSpec| {
            let names = route.graph.map(&mut |spec: &Arc<StageSpec>| spec.name().clone());
            (route.name.clone(), names, route.graph.map(&mut |spec: &Arc<StageSpec>| label(spec)))
        };
        Self { routes: routes.iter().map(diagram).collect() }
    }

    /// The picture as a [Mermaid](https://mermaid.js.org/syntax/flowchart.html) flowchart.
    #[must_use]
    pub fn to_mermaid(&self) -> String {
        self.draw().to_mermaid()
    }

    /// The picture in the [DOT language](https://graphviz.org/doc/info/lang.html).
    #[must_use]
    pub fn to_dot(&self) -> String {
        self.draw().to_dot()
    }

    /// One frame per route, in which its steps follow each other. A stage that is used again is drawn again, with a
    /// dashed line to its use before: it is one queue and one pool.
    fn draw(&self) -> Drawing {
        let mut drawing = Drawing::default();
        let mut used: Vec<(String, usize)> = Vec::new();
        for (name, _, graph) in &self.routes {
            let frame = drawing.frame(name.as_str());
            let call = drawing.boxed(frame, Shape::Round, "call");
            let ends = draw_steps(&mut drawing, frame, &mut used, graph, vec![(call, String::new())]);
            let reply = drawing.boxed(frame, Shape::Round, "reply");
            drawing.join(ends, reply);
        }
        drawing
    }
}

impl fmt::Display for Diagram {
    /// One line per route: `/digits: decode → (a | b) → join`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.routes.iter().try_for_each(|(route, graph, _)| writeln!(f, "{route}: {graph}"))
    }
}

/// Where arrows begin that have no end yet, and what is written on them.
type Ends = Vec<(usize, String)>;

fn draw_steps(
    drawing: &mut Drawing,
    frame: usize,
    used: &mut Vec<(String, usize)>,
    graph: &Graph<String>,
    from: Ends,
) -> Ends {
    let step = |drawing: &mut Drawing, shape, label: &str, from| {
        let id = drawing.boxed(frame, shape, label);
        drawing.join(from, id);
        id
    };
    match graph {
        Graph::Stage(label) => {
            let id = step(drawing, Shape::Box, label, from);
            match used.iter_mut().find(|(other, _)| other == label) {
                Some((_, before)) => drawing.same(std::mem::replace(before, id), id),
                None => used.push((label.clone(), id)),
            }
            vec![(id, String::new())]
        }
        Graph::Remote(name) => {
            let label = format!("{name} · remote");
            vec![(step(drawing, Shape::Box, &label, from), String::new())]
        }
        Graph::Map { name, .. } => vec![(step(drawing, Shape::Slanted, name, from), String::new())],
        Graph::Ask { name, .. } => vec![(step(drawing, Shape::Actor, name, from), String::new())],
        Graph::Sequence(steps) => steps.iter().fold(from, |from, step| draw_steps(drawing, frame, used, step, from)),
        Graph::Ensemble { members, join, labels } => {
            let title = match join {
                Join::FailFast(_) => "all of",
                Join::Partial(_) => "any of",
            };
            let fork = step(drawing, Shape::Round, title, from);
            let member = |(number, member): (usize, &Graph<String>)| {
                let label = labels.get(number).cloned().unwrap_or_default();
                draw_steps(drawing, frame, used, member, vec![(fork, label)])
            };
            let ends: Ends = members.iter().enumerate().flat_map(member).collect();
            vec![(step(drawing, Shape::Round, "join", ends), String::new())]
        }
        Graph::Switch { name, branches, labels, .. } => {
            let choice = step(drawing, Shape::Choice, name, from);
            let branch = |(number, branch): (usize, &Graph<String>)| {
                let label = labels.get(number).cloned().unwrap_or_else(|| number.to_string());
                draw_steps(drawing, frame, used, branch, vec![(choice, label)])
            };
            branches.iter().enumerate().flat_map(branch).collect()
        }
    }
}

/// A stage in a few words; only what differs from one replica and no batches.
fn label(spec: &StageSpec) -> String {
    let mut label = spec.name().to_string();
    let (replicas, batch) = (spec.settings().replicas().get(), spec.settings().batching().max_batch_size.get());
    if replicas > 1 {
        label.push_str(&format!(" · {replicas} replicas"));
    }
    if batch > 1 {
        label.push_str(&format!(" · batches of {batch}"));
    }
    label
}

impl Description {
    /// The running tree as a [Mermaid](https://mermaid.js.org/syntax/flowchart.html) flowchart.
    #[must_use]
    pub fn to_mermaid(&self) -> String {
        self.draw().to_mermaid()
    }

    /// The running tree in the [DOT language](https://graphviz.org/doc/info/lang.html).
    #[must_use]
    pub fn to_dot(&self) -> String {
        self.draw().to_dot()
    }

    /// Who supervises whom: the node, its stages with their replicas, its groups of actors.
    fn draw(&self) -> Drawing {
        let mut drawing = Drawing::default();
        let frame = drawing.frame("node");
        let root = drawing.boxed(frame, Shape::Round, &format!("node · {} in flight", self.in_flight));
        let under = |drawing: &mut Drawing, parent: usize, shape, label: String| {
            let id = drawing.boxed(frame, shape, &label);
            drawing.join(vec![(parent, String::new())], id);
            id
        };
        for stage in &self.stages {
            let label = format!("{} · {} · {} waiting", stage.health.name, stage.health.state, stage.queued);
            let id = under(&mut drawing, root, Shape::Box, label);
            for replica in &stage.replicas {
                let doing = match (replica.leaving, replica.busy) {
                    (true, _) => "leaving",
                    (false, true) => "busy",
                    (false, false) => "free",
                };
                under(&mut drawing, id, Shape::Round, format!("replica {} · {doing}", replica.index));
            }
        }
        let mut groups: Vec<(&str, usize)> = Vec::new();
        for actor in &self.actors {
            let group = match groups.iter().find(|(name, _)| *name == actor.group) {
                Some((_, id)) => *id,
                None => {
                    let id = under(&mut drawing, root, Shape::Box, format!("group {}", actor.group));
                    groups.push((&actor.group, id));
                    id
                }
            };
            let label = format!("{} · {} · {} waiting", actor.name, actor.state, actor.waiting);
            under(&mut drawing, group, Shape::Actor, label);
        }
        drawing
    }
}
