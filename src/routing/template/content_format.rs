//! Does a template want a message's content as one string or as a list of parts?
//!
//! vLLM decides by the template's syntax tree, without running it: a loop over a message's
//! content means parts. This follows that decision, its blind spots included, because the
//! ids have to be equal.

use minijinja::machinery::ast::{Expr, ForLoop, Set, Stmt};
use minijinja::machinery::parse;

use super::{environment, generation};

/// The shape of `content` in the messages a template gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// Text parts are joined to one string.
    String,
    /// A list of parts.
    Parts,
}

impl ContentFormat {
    /// vLLM's automatic choice for a template; a string where the template cannot be parsed.
    pub fn detect(source: &str) -> Self {
        let source = generation::rewrite(source);
        let Ok(syntax) = environment::syntax() else {
            return Self::String;
        };
        let Ok(tree) = parse(&source, super::NAME, syntax) else {
            return Self::String;
        };
        let mut nodes = Nodes::default();
        nodes.visit(&tree);
        match nodes.loops_over_content() {
            Ok(true) => Self::Parts,
            // vLLM falls back to a string when it meets a loop it does not understand.
            Ok(false) | Err(NotAName) => Self::String,
        }
    }
}

/// A loop or assignment that matters has a pattern instead of a name on its left side.
struct NotAName;

#[derive(Default)]
struct Nodes<'t> {
    loops: Vec<&'t ForLoop<'t>>,
    sets: Vec<&'t Set<'t>>,
}

impl<'t> Nodes<'t> {
    fn visit(&mut self, statement: &'t Stmt<'t>) {
        match statement {
            Stmt::Template(template) => self.visit_all(&template.children),
            Stmt::ForLoop(node) => {
                self.loops.push(node);
                self.visit_all(&node.body);
                self.visit_all(&node.else_body);
            }
            Stmt::IfCond(node) => {
                self.visit_all(&node.true_body);
                self.visit_all(&node.false_body);
            }
            Stmt::Set(node) => self.sets.push(node),
            Stmt::WithBlock(node) => self.visit_all(&node.body),
            Stmt::SetBlock(node) => self.visit_all(&node.body),
            Stmt::AutoEscape(node) => self.visit_all(&node.body),
            Stmt::FilterBlock(node) => self.visit_all(&node.body),
            Stmt::Block(node) => self.visit_all(&node.body),
            Stmt::Macro(node) => self.visit_all(&node.body),
            Stmt::CallBlock(node) => self.visit_all(&node.macro_decl.body),
            _ => {}
        }
    }

    fn visit_all(&mut self, statements: &'t [Stmt<'t>]) {
        for statement in statements {
            self.visit(statement);
        }
    }

    fn loops_over_content(&self) -> Result<bool, NotAName> {
        let all_messages = self.names_for("messages")?;
        let mut messages = Vec::new();
        for node in &self.loops {
            if all_messages
                .iter()
                .any(|name| is_access(&node.iter, name, None))
            {
                messages.push(name_of(&node.target)?);
            }
        }
        for node in &self.loops {
            let over_attribute = messages
                .iter()
                .any(|name| is_access(&node.iter, name, Some("content")));
            // Templates that pass the content to a macro loop over its parameter, which is
            // customarily called `content` (vllm#42660).
            let over_variable = matches!(&node.iter, Expr::Var(var) if var.id == "content");
            if over_attribute {
                name_of(&node.target)?;
                return Ok(true);
            }
            if over_variable && name_of(&node.target).is_ok() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// `name` and every name that some assignment gives its value to.
    fn names_for(&self, name: &'t str) -> Result<Vec<&'t str>, NotAName> {
        let mut names = vec![name];
        let mut next = 0;
        while let Some(name) = names.get(next).copied() {
            for set in &self.sets {
                if is_access(&set.expr, name, None) {
                    let target = name_of(&set.target)?;
                    if !names.contains(&target) {
                        names.push(target);
                    }
                }
            }
            next += 1;
        }
        Ok(names)
    }
}

fn name_of<'t>(target: &Expr<'t>) -> Result<&'t str, NotAName> {
    match target {
        Expr::Var(var) => Ok(var.id),
        _ => Err(NotAName),
    }
}

/// The expression is `name` (or `name.key`), perhaps filtered, tested or sliced.
fn is_access(expr: &Expr<'_>, name: &str, key: Option<&str>) -> bool {
    let is_name = |expr: &Expr<'_>| matches!(expr, Expr::Var(var) if var.id == name);
    match (expr, key) {
        (Expr::Filter(filter), _) => filter
            .expr
            .as_ref()
            .is_some_and(|inner| is_access(inner, name, key)),
        (Expr::Test(test), _) => is_access(&test.expr, name, key),
        (Expr::Slice(slice), _) => is_access(&slice.expr, name, key),
        (Expr::GetAttr(attr), Some(key)) => attr.name == key && is_name(&attr.expr),
        (Expr::GetItem(item), Some(key)) => {
            is_name(&item.expr)
                && matches!(&item.subscript_expr, Expr::Const(index) if index.value.as_str() == Some(key))
        }
        (expr, None) => is_name(expr),
        _ => false,
    }
}
