//! Expressions as C++ text.

use std::collections::{BTreeMap, BTreeSet};

use super::Op;
use super::sums::Tile;
use crate::math::{BinaryFn, Elem, Expr, Program, Reduction, UnaryFn, VarId};

/// Gives names that nothing else in the kernel has.
#[derive(Clone, Debug, Default)]
pub(super) struct Namer {
    taken: BTreeSet<String>,
}

impl Namer {
    /// The name itself, or with the first number that makes it new.
    pub(super) fn unique(&mut self, base: &str) -> String {
        let mut name = base.to_owned();
        let mut count = 1;
        while !self.taken.insert(name.clone()) {
            count += 1;
            name = format!("{base}{count}");
        }
        name
    }

    /// Gives a name back at the end of its scope.
    pub(super) fn release(&mut self, name: &str) {
        self.taken.remove(name);
    }
}

/// Text and how tightly it binds: higher binds tighter.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) text: String,
    pub(super) level: u8,
}

pub(super) const ATOM: u8 = 10;
const UNARY: u8 = 9;
pub(super) const TERM: u8 = 8;
pub(super) const SUM: u8 = 7;
const ORDER: u8 = 6;
const EQUAL: u8 = 5;
const AND: u8 = 4;
const OR: u8 = 3;
const SELECT: u8 = 2;

impl Code {
    /// A name, a call or an element.
    pub(super) fn atom(text: impl Into<String>) -> Self {
        Self { text: text.into(), level: ATOM }
    }

    /// The text where only what binds at least so tightly may stand.
    pub(super) fn at(&self, level: u8) -> String {
        if self.level >= level { self.text.clone() } else { format!("({})", self.text) }
    }

    /// The whole text.
    pub(super) fn text(self) -> String {
        self.text
    }
}

/// Where the parts of a program are found in the text.
pub(super) trait Places {
    /// The text of an element whose index is given as text.
    fn load(&self, tensor: usize, index: &[Expr], index_text: &[String]) -> Code;
    /// How many rows a table of any length has.
    fn rows(&self, tensor: usize) -> String;
    /// The text of a slot or state.
    fn scalar(&self, scalar: usize) -> Code;
}

/// What a scalar is in a text: the only element behind its pointer, as a number of the program.
pub(super) fn scalar_value(program: &Program, scalar: usize, pointer: &str) -> String {
    match program.scalars[scalar].int {
        true => format!("{pointer}[0]"),
        false => format!("real({pointer}[0])"),
    }
}

/// Turns expressions into text; what needs statements of its own is put in front.
pub(super) struct Printer<'a> {
    pub(super) program: &'a Program,
    pub(super) places: &'a dyn Places,
    pub(super) vars: BTreeMap<VarId, String>,
    pub(super) namer: Namer,
    /// Lanes that split each reduction, and the name of the thread's own; `None` where a thread sums alone.
    pub(super) lanes: Option<(usize, String)>,
    /// Whether all threads of a warp are there.
    pub(super) whole: bool,
    /// Parameters of which the thread keeps its part: the array that holds it, and how many elements.
    pub(super) kept: BTreeMap<usize, (String, usize)>,
    /// Counts the kept elements, inside a sum over them.
    pub(super) turn: Option<String>,
    /// Values of one variable whose sums the lanes hold together; `None` where all lanes work on one element.
    pub(super) tile: Option<Tile>,
    /// What is summed already: the sums that were added, and where their total is.
    pub(super) ready: Vec<(Vec<Expr>, String)>,
}

impl<'a> Printer<'a> {
    /// For a text where each thread works alone.
    pub(super) fn new(
        program: &'a Program,
        places: &'a dyn Places,
        vars: BTreeMap<VarId, String>,
        namer: Namer,
    ) -> Self {
        Self {
            program,
            places,
            vars,
            namer,
            lanes: None,
            whole: false,
            kept: BTreeMap::new(),
            turn: None,
            tile: None,
            ready: Vec::new(),
        }
    }
}

impl Printer<'_> {
    /// The same at other places, with names of its own from here on.
    pub(super) fn at<'b>(&'b self, places: &'b dyn Places, namer: Namer) -> Printer<'b> {
        Printer {
            program: self.program,
            places,
            vars: self.vars.clone(),
            namer,
            lanes: self.lanes.clone(),
            whole: self.whole,
            kept: self.kept.clone(),
            turn: self.turn.clone(),
            tile: self.tile.clone(),
            ready: self.ready.clone(),
        }
    }

    /// The text of an expression; loops of reductions go to `before`.
    pub(super) fn expr(&mut self, expr: &Expr, before: &mut Vec<Op>) -> Code {
        match expr {
            Expr::Real(x) => real(*x),
            Expr::Int(n) => {
                if *n < 0 {
                    Code { text: n.to_string(), level: UNARY }
                } else {
                    Code::atom(n.to_string())
                }
            }
            Expr::Var(v) => Code::atom(self.vars.get(v).cloned().unwrap_or_else(|| format!("/* unbound {v} */"))),
            Expr::Load(tensor, _) if self.kept.contains_key(tensor) && self.turn.is_some() => {
                let turn = self.turn.as_deref().unwrap_or_default();
                Code::atom(format!("{}[{turn}]", self.kept[tensor].0))
            }
            Expr::Load(tensor, index) => {
                let text: Vec<String> = (0..index.len()).map(|n| self.index(*tensor, n, &index[n], before)).collect();
                self.places.load(*tensor, index, &text)
            }
            Expr::Scalar(s) => self.places.scalar(*s),
            Expr::ToReal(a) => {
                let a = self.expr(a, before);
                Code::atom(format!("real({})", a.text()))
            }
            Expr::Unary(op, a) => self.unary(*op, a, before),
            Expr::Binary(op, a, b) => self.binary(*op, a, b, before),
            Expr::Select(condition, a, b) => {
                let (c, a, b) = (self.expr(condition, before), self.expr(a, before), self.expr(b, before));
                Code { text: format!("{} ? {} : {}", c.at(OR), a.at(OR), b.at(SELECT)), level: SELECT }
            }
            Expr::Reduce(..) => Code::atom(self.summed(&[expr], before)),
        }
    }

    /// One part of an index. What data decides is taken back into the tensor, so that no data reads beyond it.
    fn index(&mut self, tensor: usize, dim: usize, index: &Expr, before: &mut Vec<Op>) -> String {
        let code = self.expr(index, before);
        let extent = self.program.tensors[tensor].shape[dim];
        if let Expr::Var(var) = index
            && (extent > 0 || self.is_walked(*var))
        {
            return code.text();
        }
        let extent = match extent {
            0 => self.places.rows(tensor),
            extent => extent.to_string(),
        };
        format!("unio_row({}, {extent})", code.text())
    }

    /// Whether a statistic walks along the variable: the launch counts its values, and they lie within what it walks over.
    fn is_walked(&self, var: VarId) -> bool {
        self.program.statistics.iter().any(|s| s.element == var)
    }

    fn unary(&mut self, op: UnaryFn, a: &Expr, before: &mut Vec<Op>) -> Code {
        let a = self.expr(a, before);
        let call = match op {
            UnaryFn::Neg => {
                return Code { text: format!("-{}", a.at(ATOM)), level: UNARY };
            }
            UnaryFn::Not => {
                return Code { text: format!("!{}", a.at(ATOM)), level: UNARY };
            }
            UnaryFn::Stop => return a,
            UnaryFn::Abs => "unio_abs",
            UnaryFn::Exp => "unio_exp",
            UnaryFn::Log => "unio_log",
            UnaryFn::Log1p => "unio_log1p",
            UnaryFn::Tanh => "unio_tanh",
            UnaryFn::Sigmoid => "unio_sigmoid",
            UnaryFn::Softplus => "unio_softplus",
            UnaryFn::Sqrt => "unio_sqrt",
            UnaryFn::Sin => "unio_sin",
            UnaryFn::Cos => "unio_cos",
            UnaryFn::Floor => "unio_floor",
            UnaryFn::IsFinite => "unio_isfinite",
        };
        Code::atom(format!("{call}({})", a.text()))
    }

    fn binary(&mut self, op: BinaryFn, a: &Expr, b: &Expr, before: &mut Vec<Op>) -> Code {
        if let Some(joined) = self.joined_sums(op, a, b, before) {
            return joined;
        }
        if let Some(fused) = self.fused(op, a, b, before) {
            return fused;
        }
        let (x, y) = (self.expr(a, before), self.expr(b, before));
        let infix = |sign: &str, level: u8| Code { text: format!("{} {sign} {}", x.at(level), y.at(level + 1)), level };
        let int = self.program.elem(a) == Elem::Int;
        match op {
            BinaryFn::Add => infix("+", SUM),
            BinaryFn::Sub => infix("-", SUM),
            BinaryFn::Mul => infix("*", TERM),
            BinaryFn::Div => infix("/", TERM),
            BinaryFn::Lt => infix("<", ORDER),
            BinaryFn::Le => infix("<=", ORDER),
            BinaryFn::Gt => infix(">", ORDER),
            BinaryFn::Ge => infix(">=", ORDER),
            BinaryFn::Eq => infix("==", EQUAL),
            BinaryFn::Ne => infix("!=", EQUAL),
            BinaryFn::And => infix("&&", AND),
            BinaryFn::Or => infix("||", OR),
            BinaryFn::Min if int => Code::atom(format!("min({}, {})", x.text(), y.text())),
            BinaryFn::Max if int => Code::atom(format!("max({}, {})", x.text(), y.text())),
            BinaryFn::Min => Code::atom(format!("unio_min({}, {})", x.text(), y.text())),
            BinaryFn::Max => Code::atom(format!("unio_max({}, {})", x.text(), y.text())),
        }
    }

    /// `a * b + c` as one rounding, written out, so that every compiler gives the same bits.
    fn fused(&mut self, op: BinaryFn, a: &Expr, b: &Expr, before: &mut Vec<Op>) -> Option<Code> {
        if self.program.elem(a) != Elem::Real {
            return None;
        }
        let product = |e: &Expr| {
            if let Expr::Binary(BinaryFn::Mul, x, y) = e { Some(((**x).clone(), (**y).clone())) } else { None }
        };
        let (x, y, addend, negate) = match (op, product(a), product(b)) {
            (BinaryFn::Add, Some((x, y)), _) => (x, y, b, false),
            (BinaryFn::Add, None, Some((x, y))) => (x, y, a, false),
            (BinaryFn::Sub, None, Some((x, y))) => (x, y, a, true),
            _ => return None,
        };
        let (x, y, c) = (self.expr(&x, before), self.expr(&y, before), self.expr(addend, before));
        let x = if negate { Code { text: format!("-{}", x.at(ATOM)), level: UNARY } } else { x };
        Some(Code::atom(format!("unio_fma({}, {}, {})", x.text(), y.text(), c.text())))
    }

    /// The next value of an accumulator.
    pub(super) fn accumulate(&mut self, op: Reduction, acc: &str, body: &Expr, before: &mut Vec<Op>) -> String {
        match (op, body) {
            (Reduction::Sum, Expr::Binary(BinaryFn::Mul, a, b)) => {
                let (a, b) = (self.expr(a, before), self.expr(b, before));
                format!("unio_fma({}, {}, {acc})", a.text(), b.text())
            }
            (Reduction::Sum, body) => format!("{acc} + {}", self.expr(body, before).at(TERM)),
            (Reduction::Max, body) => format!("unio_max({acc}, {})", self.expr(body, before).text()),
            (Reduction::Min, body) => format!("unio_min({acc}, {})", self.expr(body, before).text()),
        }
    }

    /// A name of its own for a variable.
    pub(super) fn name(&mut self, var: VarId) -> String {
        self.namer.unique(&crate::names::c_ident(&self.program.vars[var].name))
    }

    /// Names a variable for the scope that begins.
    pub(super) fn bind(&mut self, var: VarId) -> String {
        let name = self.name(var);
        self.vars.insert(var, name.clone());
        name
    }

    /// Ends the scope of a variable.
    pub(super) fn unbind(&mut self, var: VarId, name: &str) {
        self.namer.release(name);
        self.vars.remove(&var);
    }
}

/// A literal of the real type.
fn real(x: f64) -> Code {
    match x {
        x if x == f64::INFINITY => Code::atom("real(unio_inf())"),
        x if x == f64::NEG_INFINITY => Code { text: "-real(unio_inf())".into(), level: UNARY },
        x if x < 0.0 => Code { text: format!("-real({:?})", -x), level: UNARY },
        x if x == x.trunc() && x < 1e9 => Code::atom(format!("real({x:.0})")),
        x => Code::atom(format!("real({x:?})")),
    }
}

/// Row-major place of an element.
pub(super) fn flat(shape: &[usize], index: &[String]) -> String {
    let mut terms = Vec::new();
    for (n, text) in index.iter().enumerate() {
        let stride: usize = shape[n + 1..].iter().product();
        match (text.as_str(), stride) {
            ("0", _) => {}
            (_, 1) => terms.push(text.clone()),
            (_, stride) => terms.push(format!("{text} * {stride}")),
        }
    }
    if terms.is_empty() { "0".into() } else { terms.join(" + ") }
}

/// The indices of the element at a place, row-major: the reverse of [`flat`].
pub(super) fn unflat(names: &[String], extents: &[usize], element: &str) -> Vec<Op> {
    let mut ops = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let inner: usize = extents[n + 1..].iter().product();
        let value = match (n, inner) {
            (0, 1) => element.to_owned(),
            (0, inner) => format!("{element} / {inner}"),
            (_, 1) => format!("{element} % {}", extents[n]),
            (_, inner) => format!("{element} / {inner} % {}", extents[n]),
        };
        ops.push(Op::Let { ty: "int", name: name.clone(), value });
    }
    ops
}

/// C type of a value in a register.
pub(super) fn register_type(elem: Elem) -> &'static str {
    match elem {
        Elem::Real => "real",
        Elem::Int => "int",
        Elem::Bool => "bool",
    }
}
