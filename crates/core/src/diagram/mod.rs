//! Pictures of an app before it runs, and of a running node: pure functions of the declaration or the description.

mod drawing;
#[cfg(test)]
mod tests;

use crate::app::App;
use crate::description::{Description, PipelinePlan, StageOutline};
use crate::id::StageName;

use self::drawing::{Drawing, Shape};

/// A picture of boxes and arrows.
///
/// ```
/// use callboard_core::{App, Diagram, Pipeline, Stage};
///
/// let words = Stage::each("words", |text: &String| Ok(text.split(' ').count()));
/// let double = Stage::each("double", |n: &usize| Ok(n * 2)).max_batch_size(8).replicas(2);
/// let app = App::new().route("/count", Pipeline::from(words).then(double));
/// assert!(Diagram::for_app(&app).to_mermaid().contains(r#"["double · 2 replicas · batches of 8"]"#));
/// ```
#[derive(Clone, Debug)]
pub struct Diagram(Drawing);

impl Diagram {
    /// The routes of an app, with their steps.
    #[must_use]
    pub fn for_app(app: &App) -> Self {
        Self::for_routes(app.routes().iter().map(|route| (route.name(), route.plan())))
    }

    /// One frame per route, in which its steps follow each other. A stage that is used again is drawn again, with a
    /// dashed line to its use before: it is one queue and one pool.
    #[must_use]
    pub fn for_routes<'a>(routes: impl IntoIterator<Item = (&'a str, PipelinePlan<StageOutline>)>) -> Self {
        let mut drawing = Drawing::default();
        let mut used: Vec<(String, usize)> = Vec::new();
        for (name, plan) in routes {
            let frame = drawing.frame(name);
            let call = drawing.boxed(frame, Shape::Round, "call");
            let ends = draw_steps(&mut drawing, frame, &mut used, &plan, vec![(call, String::new())]);
            let reply = drawing.boxed(frame, Shape::Round, "reply");
            drawing.join(ends, reply);
        }
        Self(drawing)
    }

    /// The running tree: the node, its stages with their replicas, its groups of actors.
    #[must_use]
    pub fn for_node(node: &Description) -> Self {
        Self(draw_node(node))
    }

    /// The picture as a [Mermaid](https://mermaid.js.org/syntax/flowchart.html) flowchart.
    #[must_use]
    pub fn to_mermaid(&self) -> String {
        self.0.to_mermaid()
    }

    /// The picture in the [DOT language](https://graphviz.org/doc/info/lang.html).
    #[must_use]
    pub fn to_dot(&self) -> String {
        self.0.to_dot()
    }
}

/// The begins of arrows without an end yet, with their labels.
type Ends = Vec<(usize, String)>;

fn draw_steps(
    drawing: &mut Drawing,
    frame: usize,
    used: &mut Vec<(String, usize)>,
    plan: &PipelinePlan<StageOutline>,
    from: Ends,
) -> Ends {
    let step = |drawing: &mut Drawing, shape, label: &str, from| {
        let id = drawing.boxed(frame, shape, label);
        drawing.join(from, id);
        id
    };
    match plan {
        PipelinePlan::Stage(StageOutline::Local { name, replicas, max_batch_size, replicas_of }) => {
            let label = stage_label(name, *replicas, *max_batch_size, replicas_of.as_ref());
            let id = step(drawing, Shape::Box, &label, from);
            match used.iter_mut().find(|(other, _)| *other == label) {
                Some((_, before)) => drawing.same(std::mem::replace(before, id), id),
                None => used.push((label, id)),
            }
            vec![(id, String::new())]
        }
        PipelinePlan::Stage(StageOutline::Remote(name)) => {
            let label = format!("{name} · remote");
            vec![(step(drawing, Shape::Box, &label, from), String::new())]
        }
        PipelinePlan::Ask(name) => vec![(step(drawing, Shape::Actor, name, from), String::new())],
        PipelinePlan::Sequence(steps) => {
            steps.iter().fold(from, |from, step| draw_steps(drawing, frame, used, step, from))
        }
        PipelinePlan::Switch { .. } => {
            let choice = step(drawing, Shape::Choice, &plan.title(), from);
            let branch = |(number, (name, branch)): (usize, (&str, _))| {
                let label = if name.is_empty() { number.to_string() } else { name.to_owned() };
                draw_steps(drawing, frame, used, branch, vec![(choice, label)])
            };
            plan.parts().into_iter().enumerate().flat_map(branch).collect()
        }
        _ if plan.parts().is_empty() => vec![(step(drawing, Shape::Slanted, &plan.title(), from), String::new())],
        _ => {
            let fork = step(drawing, Shape::Round, &plan.title(), from);
            let member =
                |(name, member): (&str, _)| draw_steps(drawing, frame, used, member, vec![(fork, name.to_owned())]);
            let ends: Ends = plan.parts().into_iter().flat_map(member).collect();
            vec![(step(drawing, Shape::Round, "join", ends), String::new())]
        }
    }
}

/// A stage in a few words; only what differs from one replica and no batches.
fn stage_label(name: &StageName, replicas: usize, max_batch_size: usize, replicas_of: Option<&StageName>) -> String {
    let mut label = name.to_string();
    match replicas_of {
        Some(host) => label.push_str(&format!(" · replicas of {host}")),
        None if replicas > 1 => label.push_str(&format!(" · {replicas} replicas")),
        None => {}
    }
    if max_batch_size > 1 {
        label.push_str(&format!(" · batches of {max_batch_size}"));
    }
    label
}

fn draw_node(node: &Description) -> Drawing {
    let mut drawing = Drawing::default();
    let frame = drawing.frame("node");
    let root = drawing.boxed(frame, Shape::Round, &format!("node · {} in flight", node.in_flight));
    let under = |drawing: &mut Drawing, parent: usize, shape, label: String| {
        let id = drawing.boxed(frame, shape, &label);
        drawing.join(vec![(parent, String::new())], id);
        id
    };
    for stage in &node.stages {
        let mut label = format!("{} · {} · {} waiting", stage.health.name, stage.health.state, stage.queued);
        if let Some(host) = &stage.replicas_of {
            label.push_str(&format!(" · replicas of {host}"));
        }
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
    for actor in &node.actors {
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
