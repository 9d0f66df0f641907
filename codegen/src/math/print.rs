//! A program as people read it, one line an assignment: for tests and for whoever looks into a stage.

use std::fmt;

use super::ir::{Assign, BinaryFn, Elem, Expr, Node, Program, Reduction, Role, StatisticKind, UnaryFn, VarId};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tensor in self.tensors.iter().filter(|t| t.role != Role::Local) {
            let extents: Vec<String> = tensor.shape.iter().map(|n| any(*n)).collect();
            let kind = match tensor.elem {
                Elem::Real => "",
                Elem::Int => " i32",
                Elem::Bool => " bool",
            };
            writeln!(f, "{} {}[{}]{kind}", self.role(tensor.role), tensor.name, extents.join(","))?;
        }
        for statistic in &self.statistics {
            let name = &self.tensors[statistic.tensor].name;
            let mut writer = Writer::new(self);
            let element = writer.var(statistic.element);
            writeln!(f, "{name} = {}({element}: {})", kind(statistic.kind), writer.expr(&statistic.value))?;
        }
        for node in &self.body {
            match node {
                Node::Assign(assign) => writeln!(f, "{}", self.assignment(assign))?,
                Node::Scan(scan) => {
                    let var = &self.vars[scan.var];
                    let order = if scan.reversed { "reversed " } else { "" };
                    writeln!(f, "{order}scan {} < {}:", var.name, any(var.extent))?;
                    for assign in &scan.body {
                        writeln!(f, "    {}", self.assignment(assign))?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn any(extent: usize) -> String {
    match extent {
        0 => "*".to_owned(),
        n => n.to_string(),
    }
}

fn kind(kind: StatisticKind) -> String {
    match kind {
        StatisticKind::Quantile(q) => format!("quantile {q}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

impl Program {
    /// One assignment, as it would be written in an equation.
    pub fn assignment(&self, assign: &Assign) -> String {
        let mut writer = Writer::new(self);
        let index: Vec<String> = assign.index.iter().map(|v| writer.var(*v)).collect();
        let target = element(&self.tensors[assign.tensor].name, &index);
        format!("{target} = {}", writer.expr(&assign.value))
    }

    fn role(&self, role: Role) -> String {
        let name = |of: usize| &self.tensors[of].name;
        match role {
            Role::Carry { from } => format!("carry of {} as", name(from)),
            Role::Next { of } => format!("next {} as", name(of)),
            Role::CotangentIn { of, reader } => format!("cotangent {reader} of {} as", name(of)),
            Role::CotangentOut { of } => format!("cotangent to {} as", name(of)),
            Role::ParamGradient { of } => format!("gradient to {} as", name(of)),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}

fn element(name: &str, index: &[String]) -> String {
    match index {
        [] => name.to_owned(),
        index => format!("{name}[{}]", index.join(",")),
    }
}

/// Gives variables of one name and several meanings a mark each, in the order in which they appear.
struct Writer<'a> {
    program: &'a Program,
    seen: Vec<VarId>,
}

impl<'a> Writer<'a> {
    fn new(program: &'a Program) -> Self {
        Self { program, seen: Vec::new() }
    }

    fn var(&mut self, var: VarId) -> String {
        if !self.seen.contains(&var) {
            self.seen.push(var);
        }
        let name = &self.program.vars[var].name;
        let before = self.seen.iter().take_while(|v| **v != var);
        let same = before.filter(|v| self.program.vars[**v].name == *name).count();
        format!("{name}{}", "'".repeat(same))
    }

    fn expr(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Real(x) => format!("{x:?}"),
            Expr::Int(n) => n.to_string(),
            Expr::Var(v) => self.var(*v),
            Expr::Load(t, index) => {
                let index: Vec<String> = index.iter().map(|e| self.expr(e)).collect();
                element(&self.program.tensors[*t].name, &index)
            }
            Expr::Scalar(s) => {
                let read = &self.program.scalars[*s];
                let member = read.member.as_ref().map_or(String::new(), |m| format!("[{m}]"));
                format!("{}.{}{member}", format!("{:?}", read.when).to_lowercase(), read.name)
            }
            Expr::ToReal(a) => format!("real({})", self.expr(a)),
            Expr::Unary(UnaryFn::Neg, a) => format!("-{}", self.part(a)),
            Expr::Unary(UnaryFn::Not, a) => format!("!{}", self.part(a)),
            Expr::Unary(op, a) => format!("{}({})", format!("{op:?}").to_lowercase(), self.expr(a)),
            Expr::Binary(op @ (BinaryFn::Min | BinaryFn::Max), a, b) => {
                format!("{}({}, {})", format!("{op:?}").to_lowercase(), self.expr(a), self.expr(b))
            }
            Expr::Binary(op, a, b) => format!("{} {} {}", self.part(a), sign(*op), self.part(b)),
            Expr::Select(c, a, b) => format!("select({}, {}, {})", self.expr(c), self.expr(a), self.expr(b)),
            Expr::Reduce(op, vars, body) => {
                let vars: Vec<String> = vars.iter().map(|v| self.var(*v)).collect();
                format!("{}({}: {})", reduction(*op), vars.join(","), self.expr(body))
            }
        }
    }

    /// A part of a larger expression: what is infix itself stands in brackets.
    fn part(&mut self, expr: &Expr) -> String {
        let infix = matches!(expr, Expr::Binary(op, ..) if !matches!(op, BinaryFn::Min | BinaryFn::Max));
        match infix {
            true => format!("({})", self.expr(expr)),
            false => self.expr(expr),
        }
    }
}

fn reduction(op: Reduction) -> &'static str {
    match op {
        Reduction::Sum => "sum",
        Reduction::Max => "max",
        Reduction::Min => "min",
    }
}

fn sign(op: BinaryFn) -> &'static str {
    match op {
        BinaryFn::Add => "+",
        BinaryFn::Sub => "-",
        BinaryFn::Mul => "*",
        BinaryFn::Div => "/",
        BinaryFn::Lt => "<",
        BinaryFn::Le => "<=",
        BinaryFn::Gt => ">",
        BinaryFn::Ge => ">=",
        BinaryFn::Eq => "==",
        BinaryFn::Ne => "!=",
        BinaryFn::And => "&&",
        BinaryFn::Or => "||",
        BinaryFn::Min => "min",
        BinaryFn::Max => "max",
    }
}
