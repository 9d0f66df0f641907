//! What each stage makes of a few small sets, and that the grammar reads back what it is shown.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use unio_codegen::equations::{Equations, equations};
use unio_codegen::math::{Program, Role};
use unio_codegen::model::{Lock, Model, resolve};
use unio_codegen::plan::{BlockBody, Body, Carry, KernelPlan, Phase, Plan, plan};
use unio_codegen::spec::SetFiles;
use unio_codegen::{Compiled, common, compile_texts, spec, view};
use unio_tests::fixture_text;
use unio_tests::fixtures::{borrowed, files};

/// A set up to its plan.
struct Stages {
    model: Model,
    equations: Equations,
    plan: Plan,
}

fn stages(name: &str) -> Stages {
    let files = files(&fixture_text(&format!("pass/{name}.toml")));
    let set = SetFiles::from_texts(borrowed(&files));
    let included = common::included(&set, None).unwrap();
    let spec = spec::read(&set, &included).unwrap_or_else(|e| panic!("{e}"));
    let (model, _) = resolve(&spec, &Lock::default()).unwrap_or_else(|e| panic!("{e}"));
    let equations = equations(&model).unwrap_or_else(|e| panic!("{e}"));
    let plan = plan(&model, &equations).unwrap_or_else(|e| panic!("{e}"));
    Stages { model, equations, plan }
}

fn compiled(name: &str) -> Compiled {
    let files = files(&fixture_text(&format!("pass/{name}.toml")));
    compile_texts(&borrowed(&files)).unwrap_or_else(|e| panic!("{e}"))
}

impl Stages {
    fn stage(&self, name: &str) -> usize {
        let stages = &self.model.network.as_ref().unwrap().stages;
        stages.iter().position(|s| s.name == name).unwrap()
    }

    fn forward(&self, name: &str) -> &Program {
        &self.equations.stages[self.stage(name)].forward
    }

    fn adjoint(&self, name: &str) -> &Program {
        &self.equations.stages[self.stage(name)].adjoint.as_ref().unwrap().program
    }

    fn kernel(&self, symbol: &str) -> &KernelPlan {
        self.plan.kernels.iter().find(|k| k.symbol == symbol).unwrap()
    }
}

/// Forward and adjoint of a stage, in normal form.
fn programs(name: &str, stage: &str) -> String {
    let stages = stages(name);
    format!("{}\n-- adjoint\n{}", stages.forward(stage), stages.adjoint(stage))
}

/// Phases, barriers and homes of a block kernel.
fn phases(name: &str, symbol: &str) -> String {
    let stages = stages(name);
    let kernel = stages.kernel(symbol);
    let Body::Block(body) = &kernel.body else { panic!("{symbol} is no block") };
    let mut text = format!("{} threads, {} shared reals\n", kernel.threads, body.shared_reals);
    for (id, home) in &body.homes {
        let tensor = &body.program.tensors[*id];
        let mut places = Vec::new();
        places.extend(home.shared.map(|at| format!("shared at {at}")));
        places.extend(home.staged.map(|stride| format!("copied, rows {stride} apart")));
        places.extend(home.one_step.then(|| "one step".to_owned()));
        places.extend(home.global.map(|p| format!("global ({:?})", kernel.params[p].access)));
        if places.is_empty() {
            places.push("register".to_owned());
        }
        writeln!(text, "{}: {}", tensor.name, places.join(", ")).unwrap();
    }
    write_phases(&mut text, body, &body.phases, "");
    text
}

fn write_phases(text: &mut String, body: &BlockBody, phases: &[Phase], indent: &str) {
    for phase in phases {
        match phase {
            Phase::Barrier => writeln!(text, "{indent}barrier").unwrap(),
            Phase::WarpBarrier => writeln!(text, "{indent}barrier of each warp").unwrap(),
            Phase::Pass => writeln!(text, "{indent}pass").unwrap(),
            Phase::Copy => writeln!(text, "{indent}copy").unwrap(),
            Phase::Copied => writeln!(text, "{indent}copies are there").unwrap(),
            Phase::Parallel(parallel) => {
                let vars: Vec<&str> = parallel.vars.iter().map(|v| body.program.vars[*v].name.as_str()).collect();
                let lanes = if parallel.lanes > 1 { format!(", {} lanes", parallel.lanes) } else { String::new() };
                let tile = parallel.tile.map(|(var, n)| format!(", {n} of {} together", body.program.vars[var].name));
                let kept = parallel.kept.iter().map(|t| format!(", keeps {}", body.program.tensors[*t].name));
                let ahead = parallel.ahead.iter().map(|t| format!(", {} ahead", body.program.tensors[*t].name));
                let more: String = tile.into_iter().chain(kept).chain(ahead).collect();
                writeln!(text, "{indent}each ({}){lanes}{more}", vars.join(", ")).unwrap();
                for item in &parallel.items {
                    let carry = match item.carry {
                        Carry::None => "",
                        Carry::Start => "start: ",
                        Carry::Next => "next: ",
                    };
                    writeln!(text, "{indent}    {carry}{}", body.program.assignment(&item.assign)).unwrap();
                }
            }
            Phase::Loop { var, reversed, body: inner } => {
                let order = if *reversed { "reversed " } else { "" };
                writeln!(text, "{indent}{order}scan {}", body.program.vars[*var].name).unwrap();
                write_phases(text, body, inner, &format!("{indent}    "));
            }
        }
    }
}

macro_rules! programs {
    ($($test:ident $fixture:literal $stage:literal)*) => {$(
        #[test]
        fn $test() {
            insta::assert_snapshot!(programs($fixture, $stage));
        }
    )*};
}

programs! {
    programs_of_a_sum "sum" "cell"
    programs_of_a_scan "scan" "cell"
    programs_of_a_softmax "softmax" "pool"
    programs_of_kinks "kinks" "cell"
    programs_of_a_fork "readers" "source"
    programs_of_a_join "readers" "join"
    programs_of_a_gather "gather" "look"
    programs_of_blocks_in_a_block "uses" "cell"
}

macro_rules! phases {
    ($($test:ident $fixture:literal $symbol:literal)*) => {$(
        #[test]
        fn $test() {
            insta::assert_snapshot!(phases($fixture, $symbol));
        }
    )*};
}

phases! {
    phases_of_a_sum "sum" "t_cell_forward"
    phases_of_its_adjoint "sum" "t_cell_adjoint"
    phases_of_a_scan "scan" "t_cell_forward"
    phases_of_a_reversed_scan "scan" "t_cell_adjoint"
    phases_of_a_softmax "softmax" "t_pool_forward"
    phases_of_the_adjoint_of_a_softmax "softmax" "t_pool_adjoint"
    phases_of_a_wide_scan "wide_scan" "t_cell_forward"
    phases_of_several_samples "rows" "t_dense_forward"
    phases_of_their_adjoint "rows" "t_dense_adjoint"
}

#[test]
fn statements_as_written() {
    let stages = stages("steering");
    let mut text = String::new();
    for update in &stages.model.updates {
        for s in &update.statements {
            let next = if s.target.next { "next." } else { "" };
            let when = s.when.as_ref().map_or(String::new(), |w| format!(" when {}", grammar::printed(w)));
            writeln!(text, "{}: {next}{} = {}{when}", update.name, s.target.name.text, grammar::printed(&s.value))
                .unwrap();
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn programs_of_updates_and_signals() {
    let stages = stages("steering");
    let all =
        stages.equations.updates.iter().chain(&stages.equations.producers).chain(stages.equations.smoothings.values());
    let texts: Vec<String> = all.map(|p| p.to_string()).collect();
    insta::assert_snapshot!(texts.join("\n"));
}

/// Who runs after whom.
#[test]
fn order_of_a_step() {
    insta::assert_snapshot!(order("steering"));
}

fn order(name: &str) -> String {
    let stages = stages(name);
    let mut text = String::new();
    for launch in &stages.plan.train {
        let after: Vec<&str> = launch.after.iter().map(|n| stages.plan.train[*n].name.as_str()).collect();
        let evaluated = stages.plan.evaluate.iter().any(|l| l.name == launch.name);
        let mark = if evaluated { " (evaluated too)" } else { "" };
        writeln!(text, "{}{mark} after {}", launch.name, after.join(", ")).unwrap();
    }
    text
}

#[test]
fn slots_states_and_lock() {
    let stages = stages("steering");
    let mut text = String::new();
    for s in &stages.model.slots {
        writeln!(text, "slot {} at {} observed at {} for {:?}", s.name, s.index, s.scratch, s.members).unwrap();
    }
    for s in &stages.model.states {
        writeln!(text, "state {} in word {} from {}", s.name, s.word, s.init).unwrap();
    }
    text.push_str(&compiled("steering").lock);
    insta::assert_snapshot!(text);
}

#[test]
fn cuda_of_a_block() {
    insta::assert_snapshot!(kernel_text("sum", "cell", "t_cell_forward"));
}

#[test]
fn cuda_of_several_samples() {
    insta::assert_snapshot!(kernel_text("rows", "dense", "t_dense_forward"));
}

#[test]
fn cuda_of_an_optimizer() {
    insta::assert_snapshot!(kernel_text("steering", "momentum", "t_momentum"));
}

#[test]
fn cuda_of_a_producer() {
    insta::assert_snapshot!(kernel_text("steering", "grad_norm", "t_grad_norm"));
}

#[test]
fn cuda_of_the_reducer() {
    insta::assert_snapshot!(kernel_text("sum", "reduce_axis0", "t_reduce_axis0"));
}

/// One block takes all samples, and its shared memory goes from one to the next.
#[test]
fn cuda_of_a_single_block() {
    insta::assert_snapshot!(kernel_text("schedules", "second", "t_second_adjoint"));
}

#[test]
fn cuda_of_deferred_gradients() {
    insta::assert_snapshot!(kernel_text("schedules", "third", "t_third_gradients"));
}

/// The scratch has columns of one stage only, whose sums go where its gradients belong.
#[test]
fn cuda_of_a_reducer_among_deferred_gradients() {
    insta::assert_snapshot!(kernel_text("schedules", "reduce_axis0", "t_reduce_axis0"));
}

#[test]
fn order_of_a_step_with_deferred_gradients() {
    insta::assert_snapshot!(order("schedules"));
}

#[test]
fn stages_explained() {
    insta::assert_snapshot!(explained("schedules", Some("first")).unwrap());
    let all = explained("schedules", None).unwrap();
    let titles: Vec<&str> =
        all.lines().filter(|line| line.starts_with("stage ") || line.starts_with("model ")).collect();
    assert_eq!(titles.len(), 5, "{titles:?}");
    assert_eq!(explained("schedules", Some("step")).unwrap().matches("stage ").count(), 3);
    let unknown = explained("schedules", Some("thrid")).unwrap_err();
    assert!(unknown.contains("no stage or block `thrid`; the stages are first, second, third, last"), "{unknown}");
    assert!(explained("nothing", None).unwrap_err().contains("the set has no model"));
}

fn explained(name: &str, stage: Option<&str>) -> Result<String, String> {
    let files = match name {
        "nothing" => vec![("t/unio.toml".to_owned(), unio_tests::MANIFEST.to_owned())],
        name => files(&fixture_text(&format!("pass/{name}.toml"))),
    };
    let set = SetFiles::from_texts(borrowed(&files));
    let included = common::included(&set, None).unwrap();
    unio_codegen::explain(&set, &included, "", stage).map_err(|error| error.to_string())
}

fn drawn(name: &str, phase: view::Phase, drawing: view::Drawing) -> String {
    view::draw(&compiled(name).artefacts, phase, drawing).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_step_by_level() {
    let both = [view::Phase::Train, view::Phase::Evaluate].map(|phase| drawn("steering", phase, view::Drawing::Text));
    insta::assert_snapshot!(both.join("\n"));
}

#[test]
fn a_step_for_graphviz() {
    insta::assert_snapshot!(drawn("steering", view::Phase::Train, view::Drawing::Dot));
}

/// Every tag that is opened is closed, in order; every launch is named.
#[test]
fn a_step_as_a_picture() {
    let svg = drawn("steering", view::Phase::Train, view::Drawing::Svg);
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
        let name = tag.split([' ', '\n', '/']).next().unwrap_or_default();
        match tag.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed.trim()), "{tag}"),
            None if tag.starts_with(['?', '!']) || tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    let artefacts = compiled("steering").artefacts;
    let launches = &artefacts.program.as_ref().unwrap().train;
    for launch in launches {
        assert!(svg.contains(&launch.name), "`{}` is not in the picture", launch.name);
    }
}

#[test]
fn a_set_without_launches_has_no_step_to_show() {
    let empty = compile_texts(&[("t/unio.toml", unio_tests::MANIFEST)]).unwrap_or_else(|e| panic!("{e}"));
    let error = view::draw(&empty.artefacts, view::Phase::Train, view::Drawing::Text).unwrap_err().to_string();
    assert!(error.contains("the set `t` launches nothing"), "{error}");
}

#[test]
fn wiring_of_slots() {
    let text = &compiled("steering").mirror["t/WIRING.md"];
    insta::assert_snapshot!(text.split("## Model").next().unwrap_or_default());
}

#[test]
fn wiring_of_a_model() {
    let text = &compiled("gather").mirror["t/WIRING.md"];
    insta::assert_snapshot!(text.split_once("## Model").unwrap().1);
}

/// Ratchets on what every kernel of every passing fixture must be.
#[test]
fn kernels_keep_their_properties() {
    for entry in std::fs::read_dir(unio_tests::fixture("pass")).unwrap() {
        let name = entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned();
        let first = compiled(&name);
        assert_eq!(first.mirror, compiled(&name).mirror, "{name} is not the same twice");
        for (path, text) in first.mirror.iter().filter(|(path, _)| path.ends_with(".cu")) {
            assert!(!text.contains("atomic"), "{path}");
            let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            assert!(!words.any(|w| ["nan", "NaN", "inf"].contains(&w)), "{path}: a literal that is none");
        }
    }
}

/// The one kernel of a file, from its doc to its end.
fn kernel_text(name: &str, entry: &str, symbol: &str) -> String {
    let compiled = compiled(name);
    let text = &compiled.mirror[&format!("t/cuda/{entry}.cu")];
    let at = text.find(&format!("{symbol}(")).unwrap_or_else(|| panic!("no {symbol} in\n{text}"));
    let start = text[..at].rfind("\n\n").map_or(0, |n| n + 2);
    let end = text[at..].find("\n}\n").map_or(text.len(), |n| at + n + 3);
    text[start..end].to_owned()
}

/// No cotangent, gradient or saved value is left without an assignment.
#[test]
fn adjoints_give_all_that_they_declare() {
    for (name, stage) in
        [("sum", "cell"), ("scan", "cell"), ("softmax", "pool"), ("kinks", "cell"), ("readers", "source")]
    {
        let stages = stages(name);
        let adjoint = stages.adjoint(stage);
        let given: Vec<usize> = adjoint.assigns().map(|(a, _)| a.tensor).collect();
        for (id, tensor) in adjoint.tensors.iter().enumerate() {
            if matches!(tensor.role, Role::ParamGradient { .. } | Role::CotangentOut { .. }) {
                assert!(given.contains(&id), "{name}: `{}` is not given", tensor.name);
            }
        }
    }
}

mod grammar {
    //! The grammar: what is printed is read back as the same tree, and nothing panics.

    use proptest::prelude::*;
    use unio_codegen::diagnostics::{Loc, Report};
    use unio_codegen::spec::equation::{
        BinaryOp, Expr, ExprKind, Name, Text, UnaryOp, When, parse_expr, parse_shape, parse_statements,
    };

    /// An expression with a bracket around every part, so that the tree is all in the text.
    pub fn printed(expr: &Expr) -> String {
        let list = |args: &[Expr]| args.iter().map(printed).collect::<Vec<_>>().join(", ");
        match &expr.kind {
            ExprKind::Float(x) => format!("{x:?}"),
            ExprKind::Int(n) => n.to_string(),
            ExprKind::Name(name) => name.clone(),
            ExprKind::Index(name, args) => format!("{}[{}]", name.text, list(args)),
            ExprKind::Call(name, args) => format!("{}({})", name.text, list(args)),
            ExprKind::Read(when, name, member) => {
                let when = format!("{when:?}").to_lowercase();
                let member = member.as_ref().map_or(String::new(), |m| format!("[{}]", m.text));
                format!("{when}.{}{member}", name.text)
            }
            ExprKind::Unary(op, a) => format!("({}{})", if *op == UnaryOp::Neg { "-" } else { "!" }, printed(a)),
            ExprKind::Binary(op, a, b) => format!("({} {} {})", printed(a), sign(*op), printed(b)),
        }
    }

    fn sign(op: BinaryOp) -> &'static str {
        match op {
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::Lt => "<",
            BinaryOp::Le => "<=",
            BinaryOp::Gt => ">",
            BinaryOp::Ge => ">=",
            BinaryOp::Eq => "==",
            BinaryOp::Ne => "!=",
            BinaryOp::And => "&&",
            BinaryOp::Or => "||",
        }
    }

    /// How tightly an operator binds, as the grammar of `equation.rs` says.
    fn level(op: BinaryOp) -> u8 {
        match op {
            BinaryOp::Or => 1,
            BinaryOp::And => 2,
            BinaryOp::Add | BinaryOp::Sub => 4,
            BinaryOp::Mul | BinaryOp::Div => 5,
            _ => 3,
        }
    }

    /// An expression with only the brackets that it needs; `least` is how tightly it must bind here.
    fn sparse(expr: &Expr, least: u8) -> String {
        let list = |args: &[Expr]| args.iter().map(|a| sparse(a, 0)).collect::<Vec<_>>().join(",");
        let (text, own) = match &expr.kind {
            ExprKind::Unary(op, a) => (format!("{}{}", if *op == UnaryOp::Neg { "-" } else { "!" }, sparse(a, 6)), 6),
            ExprKind::Binary(op, a, b) => {
                let own = level(*op);
                // Comparisons do not chain; the others lean to the left.
                let left = own + u8::from(own == 3);
                (format!("{} {} {}", sparse(a, left), sign(*op), sparse(b, own + 1)), own)
            }
            ExprKind::Index(name, args) => (format!("{}[{}]", name.text, list(args)), 7),
            ExprKind::Call(name, args) => (format!("{}({})", name.text, list(args)), 7),
            _ => (printed(expr), 7),
        };
        if own < least { format!("({text})") } else { text }
    }

    fn text(value: &str) -> Text {
        let loc = Loc { file: 0, range: 0..value.len() };
        Text { value: value.to_owned(), loc, offsets: (0..=value.len()).collect() }
    }

    fn expr(kind: ExprKind) -> Expr {
        Expr { kind, loc: Loc::default() }
    }

    fn names() -> impl Strategy<Value = Name> {
        "[a-zA-Z][a-zA-Z0-9]{0,3}(_[a-z0-9]{1,2})?"
            .prop_filter("words of the language", |n| {
                !["when", "prev", "now", "observed", "next"].contains(&n.as_str())
            })
            .prop_map(|text| Name { text, loc: Loc::default() })
    }

    fn exprs() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![
            (0..=i32::MAX).prop_map(|n| expr(ExprKind::Int(n.into()))),
            (0.0..1e30f64).prop_map(|x| expr(ExprKind::Float(x))),
            (1e-30..1.0f64).prop_map(|x| expr(ExprKind::Float(x))),
            names().prop_map(|n| expr(ExprKind::Name(n.text))),
            (
                prop_oneof![Just(When::Prev), Just(When::Now), Just(When::Observed)],
                names(),
                proptest::option::of(names())
            )
                .prop_map(|(when, name, member)| expr(ExprKind::Read(when, name, member))),
        ];
        leaf.prop_recursive(5, 60, 3, |inner| {
            let list = proptest::collection::vec(inner.clone(), 0..3);
            prop_oneof![
                (names(), list.clone()).prop_map(|(n, args)| expr(ExprKind::Index(n, args))),
                (names(), list).prop_map(|(n, args)| expr(ExprKind::Call(n, args))),
                (any::<bool>(), inner.clone()).prop_map(|(neg, a)| {
                    let op = if neg { UnaryOp::Neg } else { UnaryOp::Not };
                    expr(ExprKind::Unary(op, Box::new(a)))
                }),
                (operators(), inner.clone(), inner).prop_map(|(op, a, b)| expr(ExprKind::Binary(
                    op,
                    Box::new(a),
                    Box::new(b)
                ))),
            ]
        })
    }

    fn operators() -> impl Strategy<Value = BinaryOp> {
        use BinaryOp::*;
        proptest::sample::select(vec![Add, Sub, Mul, Div, Lt, Le, Gt, Ge, Eq, Ne, And, Or])
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(expr in exprs()) {
            for shown in [printed(&expr), sparse(&expr, 0)] {
                let mut report = Report::default();
                let read = parse_expr(&text(&shown), &mut report);
                prop_assert!(read.is_some(), "{} gives {:?}", shown, report);
                prop_assert_eq!(printed(&read.unwrap()), printed(&expr), "{}", shown);
            }
        }

        /// The place of an expression is the text of just that expression.
        #[test]
        fn places_hold_what_they_name(expr in exprs()) {
            let shown = sparse(&expr, 0);
            let mut report = Report::default();
            let Some(read) = parse_expr(&text(&shown), &mut report) else { return Ok(()) };
            let place = shown[read.loc.range.clone()].to_owned();
            let again = parse_expr(&text(&place), &mut report);
            prop_assert!(again.is_some(), "{} of {}", place, shown);
        }

        #[test]
        fn no_text_panics(value in "\\PC{0,40}", words in "([a-z]|\\[|\\]|\\(|\\)|[-+*/=<>!&|.,;]|[0-9]|when|next\\.|prev\\.| |\n|é){0,40}") {
            for value in [value, words] {
                let mut report = Report::default();
                let statements = parse_statements(&text(&value), &mut report);
                let _ = (parse_expr(&text(&value), &mut report), parse_shape(&text(&value), &mut report));
                prop_assert!(!statements.is_empty() || !report.is_empty() || value.trim().is_empty() || value.contains('/') || value.contains(';'));
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let value = String::from_utf8_lossy(&bytes);
            let mut report = Report::default();
            parse_statements(&text(&value), &mut report);
            let _ = unio_codegen::compile_texts(&[("t/unio.toml", unio_tests::MANIFEST), ("t/a.toml", &value)]).map_err(|e| e.to_string());
        }
    }
}
