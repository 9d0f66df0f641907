//! Deferred gradients: a block covers a tile of one parameter's gradient; its threads share the sum over the batch.

use std::collections::BTreeMap;

use unio_interface::{Grid, Shared};

use super::expr::{Code, Namer, Places, Printer, flat, scalar_value, unflat};
use super::{KernelBody, Lowered, Op, SharedArray};
use crate::math::{Assign, BinaryFn, Expr, Reduction, VarId};
use crate::plan::{GradientsBody, KernelPlan};

/// Names that such a kernel gives itself.
pub(super) const OWN_NAMES: &[&str] = &["sum", "width", "part", "n", "half", "row", "column"];

/// Turns of a sum that are written out together, so that their reads are on the way at the same time.
const UNROLLED: usize = 4;
/// Most elements of a tile: a warp's threads read neighbours. Smaller tensors leave more threads to each element's sum.
const MOST_WIDTH: usize = 32;

pub(super) fn lower(kernel: &KernelPlan, body: &GradientsBody, names: &[String], namer: Namer) -> Lowered {
    let mut ops = vec![
        Op::Var { ty: "real*", name: "sum".into(), value: "nullptr".into() },
        Op::Var { ty: "int", name: "width".into(), value: "0".into() },
        Op::Var { ty: "real", name: "acc".into(), value: "real(0)".into() },
    ];
    let tiles = Tiles { threads: kernel.threads as usize, body, names };
    let mut first = 0;
    for (assign, _) in body.program.assigns() {
        let shape = tiles.matrix(assign);
        let blocks = match &shape {
            Some(shape) => shape.blocks(),
            None => tiles.len(assign).div_ceil(tiles.width(assign)),
        };
        let condition = match first {
            0 => format!("blockIdx.x < {blocks}"),
            first => format!("blockIdx.x >= {first} && blockIdx.x < {}", first + blocks),
        };
        let body = match &shape {
            Some(shape) => tiles.matrix_tile(assign, shape, first, namer.clone()),
            None => tiles.tile(assign, first, namer.clone()),
        };
        ops.push(Op::If { condition, body, otherwise: Vec::new() });
        first += blocks;
    }
    ops.extend(joined(kernel.threads));
    Lowered {
        grid: Grid::Fixed(first as u32),
        shared: Shared { reals: kernel.threads * tiles.most_sums(), bytes: 0 },
        arrays: vec![SharedArray { ty: "real", name: "part".into(), offset: "0".into() }],
        counted: false,
        numbers: Vec::new(),
        functions: Vec::new(),
        body: KernelBody::Ops(ops),
    }
}

/// A fixed tree joins what the threads of one element have summed; then the tile is stored.
fn joined(threads: u32) -> Vec<Op> {
    let set = |place: &str, value: &str| Op::Set { place: place.into(), value: value.into() };
    let join = set("part[threadIdx.x]", "part[threadIdx.x] + part[threadIdx.x + half]");
    let below = Op::If { condition: "threadIdx.x < half".into(), body: vec![join], otherwise: Vec::new() };
    let tree = Op::For {
        head: format!("int half = {}; half >= width; half /= 2", threads / 2),
        body: vec![below, Op::Barrier],
    };
    let store = Op::If {
        condition: "threadIdx.x < width && sum != nullptr".into(),
        body: vec![set("sum[0]", "part[threadIdx.x]")],
        otherwise: Vec::new(),
    };
    vec![set("part[threadIdx.x]", "acc"), Op::Barrier, tree, store]
}

struct Tiles<'a> {
    threads: usize,
    body: &'a GradientsBody,
    names: &'a [String],
}

/// A gradient of two dimensions or more, cut into tiles of which each thread sums several elements: what it reads for one of
/// them serves a row or a column of them.
struct Matrix {
    /// All dimensions but the last, as one.
    rows: usize,
    columns: usize,
    /// Rows and columns of a thread; its columns lie a warp apart.
    thread: (usize, usize),
}

impl Matrix {
    fn across(&self) -> usize {
        self.columns.div_ceil(MOST_WIDTH * self.thread.1)
    }

    fn blocks(&self) -> usize {
        self.rows.div_ceil(self.thread.0) * self.across()
    }

    fn sums(&self) -> usize {
        self.thread.0 * self.thread.1
    }
}

impl Tiles<'_> {
    /// The tiles of a gradient that is wide enough for them.
    fn matrix(&self, assign: &Assign) -> Option<Matrix> {
        let extents = self.extents(&assign.index);
        let columns = *extents.last()?;
        let rows = extents[..extents.len() - 1].iter().product();
        let thread = match columns / MOST_WIDTH {
            0 => return None,
            1 => (8, 1),
            2 | 3 => (8, 2),
            _ => (4, 4),
        };
        (extents.len() > 1 && rows >= thread.0).then_some(Matrix { rows, columns, thread })
    }

    /// Most elements that a thread sums.
    fn most_sums(&self) -> u32 {
        let matrices = self.body.program.assigns().filter_map(|(assign, _)| self.matrix(assign));
        matrices.map(|matrix| matrix.sums()).max().unwrap_or(1) as u32
    }

    /// Each thread of a warp sums the same rows at columns of its own; the warps share the sum's terms.
    fn matrix_tile(&self, assign: &Assign, matrix: &Matrix, first: usize, namer: Namer) -> Vec<Op> {
        let mut printer = Printer::new(&self.body.program, self, BTreeMap::new(), namer);
        let tile = printer.namer.unique("tile");
        let names: Vec<Vec<String>> = (0..matrix.thread.0.max(matrix.thread.1))
            .map(|_| assign.index.iter().map(|v| printer.name(*v)).collect())
            .collect();
        let mut ops = vec![Op::Let {
            ty: "int",
            name: tile.clone(),
            value: if first == 0 { "int(blockIdx.x)".into() } else { format!("int(blockIdx.x) - {first}") },
        }];
        self.own_places(assign, matrix, &tile, &names, &mut ops);
        let sums: Vec<String> = (0..matrix.sums()).map(|_| printer.namer.unique("sum")).collect();
        ops.extend(sums.iter().map(|sum| Op::Var { ty: "real", name: sum.clone(), value: "real(0)".into() }));
        self.matrix_terms(assign, &assign.value, matrix, (&names, &sums), &mut printer, &mut ops);
        ops.extend(self.matrix_join(assign, matrix, &tile, &sums));
        ops.push(Op::Do("return".into()));
        ops
    }

    /// Names of a thread's rows and columns; beyond the edge it works on the last again, and stores nothing.
    fn own_places(&self, assign: &Assign, matrix: &Matrix, tile: &str, names: &[Vec<String>], ops: &mut Vec<Op>) {
        let (last, leading) = (assign.index.len() - 1, self.extents(&assign.index[..assign.index.len() - 1]));
        let (across, (rows, columns)) = (matrix.across(), matrix.thread);
        let together = self.is_together(assign, matrix);
        for (n, own) in names.iter().enumerate().take(rows) {
            let row = format!("min({tile} / {across} * {rows} + {n}, {})", matrix.rows - 1);
            match leading.len() {
                _ if together && n > 0 => {
                    let value = format!("{} + {n}", names[0][last - 1]);
                    ops.push(Op::Let { ty: "int", name: own[last - 1].clone(), value });
                }
                1 => ops.push(Op::Let { ty: "int", name: own[0].clone(), value: row }),
                _ => ops.extend(unflat(&own[..last], &leading, &format!("({row})"))),
            }
        }
        for (n, own) in names.iter().enumerate().take(columns) {
            let offset = n * MOST_WIDTH;
            let column =
                format!("{tile} % {across} * {} + int(threadIdx.x % {MOST_WIDTH}) + {offset}", columns * MOST_WIDTH);
            let value = format!("min({column}, {})", matrix.columns - 1);
            ops.push(Op::Let { ty: "int", name: own[last].clone(), value });
        }
    }

    /// Whether the rows of a tile lie in one matrix of many: they share the indices of that matrix, and what is read by them.
    fn is_together(&self, assign: &Assign, matrix: &Matrix) -> bool {
        let leading = self.extents(&assign.index[..assign.index.len() - 1]);
        leading.len() > 1 && leading.last().is_some_and(|inner| inner.is_multiple_of(matrix.thread.0))
    }

    fn matrix_terms(
        &self,
        assign: &Assign,
        value: &Expr,
        matrix: &Matrix,
        (names, sums): (&[Vec<String>], &[String]),
        printer: &mut Printer<'_>,
        ops: &mut Vec<Op>,
    ) {
        match value {
            Expr::Binary(BinaryFn::Add, a, b) => {
                self.matrix_terms(assign, a, matrix, (names, sums), printer, ops);
                self.matrix_terms(assign, b, matrix, (names, sums), printer, ops);
            }
            Expr::Reduce(Reduction::Sum, vars, body) => {
                let last = assign.index.len() - 1;
                ops.push(self.sum_loop(vars, MOST_WIDTH, printer, |printer, inner| {
                    for (n, sum) in sums.iter().enumerate() {
                        let (row, column) = (&names[n / matrix.thread.1], &names[n % matrix.thread.1]);
                        for (dim, var) in assign.index.iter().enumerate() {
                            let name = match dim {
                                _ if dim == last => &column[dim],
                                _ if dim + 1 < last && self.is_together(assign, matrix) => &names[0][dim],
                                _ => &row[dim],
                            };
                            printer.vars.insert(*var, name.clone());
                        }
                        let value = printer.accumulate(Reduction::Sum, sum, body, inner);
                        inner.push(Op::Set { place: sum.clone(), value });
                    }
                }));
            }
            _ => {}
        }
    }

    /// The warps' parts of each sum, joined in a fixed tree, all sums of the block side by side.
    fn matrix_join(&self, assign: &Assign, matrix: &Matrix, tile: &str, sums: &[String]) -> Vec<Op> {
        let threads = self.threads;
        let set = |place: String, value: String| Op::Set { place, value };
        let mut ops: Vec<Op> = (sums.iter().enumerate())
            .map(|(n, sum)| set(format!("part[{} + threadIdx.x]", n * threads), sum.clone()))
            .collect();
        ops.push(Op::Barrier);
        let place = format!("part[n / half * {threads} + n % half]");
        let join = set(place.clone(), format!("{place} + part[n / half * {threads} + n % half + half]"));
        let all = Op::For {
            head: format!("int n = threadIdx.x; n < {} * half; n += {threads}", sums.len()),
            body: vec![join],
        };
        let head = format!("int half = {}; half >= {MOST_WIDTH}; half /= 2", threads / 2);
        ops.push(Op::For { head, body: vec![all, Op::Barrier] });
        ops.push(self.matrix_store(assign, matrix, tile, sums.len()));
        ops
    }

    fn matrix_store(&self, assign: &Assign, matrix: &Matrix, tile: &str, sums: usize) -> Op {
        let (across, (rows, columns)) = (matrix.across(), matrix.thread);
        let gradient = &self.names[self.body.params[&assign.tensor]];
        let int = |name: &str, value: String| Op::Let { ty: "int", name: name.into(), value };
        let own = format!("n % {MOST_WIDTH}");
        let body = vec![
            int("row", format!("{tile} / {across} * {rows} + n / {}", MOST_WIDTH * columns)),
            int(
                "column",
                format!(
                    "{tile} % {across} * {} + n / {MOST_WIDTH} % {columns} * {MOST_WIDTH} + {own}",
                    columns * MOST_WIDTH
                ),
            ),
            Op::If {
                condition: format!("row < {} && column < {}", matrix.rows, matrix.columns),
                body: vec![Op::Set {
                    place: format!("{gradient}[row * {} + column]", matrix.columns),
                    value: format!("part[n / {MOST_WIDTH} * {} + {own}]", self.threads),
                }],
                otherwise: Vec::new(),
            },
        ];
        let head = format!("int n = threadIdx.x; n < {}; n += {}", sums * MOST_WIDTH, self.threads);
        Op::For { head, body }
    }

    fn len(&self, assign: &Assign) -> usize {
        self.body.program.tensors[assign.tensor].shape.iter().product()
    }

    fn width(&self, assign: &Assign) -> usize {
        self.len(assign).next_power_of_two().min(MOST_WIDTH)
    }

    fn extents(&self, vars: &[VarId]) -> Vec<usize> {
        vars.iter().map(|v| self.body.program.vars[*v].extent).collect()
    }

    /// One element for `width` threads, the same again for the next `width` threads with the next part of the sum.
    fn tile(&self, assign: &Assign, first: usize, mut namer: Namer) -> Vec<Op> {
        let (len, width) = (self.len(assign), self.width(assign));
        let element = namer.unique("e");
        let value = match first {
            0 => format!("blockIdx.x * {width} + threadIdx.x % {width}"),
            first => format!("(blockIdx.x - {first}) * {width} + threadIdx.x % {width}"),
        };
        let mut printer = Printer::new(&self.body.program, self, BTreeMap::new(), namer);
        let names: Vec<String> = assign.index.iter().map(|v| printer.bind(*v)).collect();
        let mut inside = unflat(&names, &self.extents(&assign.index), &element);
        let gradient = &self.names[self.body.params[&assign.tensor]];
        inside.push(Op::Set { place: "sum".into(), value: format!("{gradient} + {element}") });
        self.terms(&assign.value, width, &mut printer, &mut inside);
        vec![
            Op::Set { place: "width".into(), value: width.to_string() },
            Op::Let { ty: "int", name: element.clone(), value },
            Op::If { condition: format!("{element} < {len}"), body: inside, otherwise: Vec::new() },
        ]
    }

    fn terms(&self, value: &Expr, width: usize, printer: &mut Printer<'_>, ops: &mut Vec<Op>) {
        match value {
            Expr::Binary(BinaryFn::Add, a, b) => {
                self.terms(a, width, printer, ops);
                self.terms(b, width, printer, ops);
            }
            Expr::Reduce(Reduction::Sum, vars, body) => ops.push(self.term(vars, body, width, printer)),
            // What is read by nobody has a gradient of 0, and nothing to sum.
            _ => {}
        }
    }

    fn term(&self, vars: &[VarId], body: &Expr, width: usize, printer: &mut Printer<'_>) -> Op {
        self.sum_loop(vars, width, printer, |printer, ops| {
            let value = printer.accumulate(Reduction::Sum, "acc", body, ops);
            ops.push(Op::Set { place: "acc".into(), value });
        })
    }

    /// A thread's turns of a sum over all variables as one range: every so-many-th, by how many threads share it.
    fn sum_loop<'p>(
        &self,
        vars: &[VarId],
        width: usize,
        printer: &mut Printer<'p>,
        add: impl FnOnce(&mut Printer<'p>, &mut Vec<Op>),
    ) -> Op {
        let at = printer.namer.unique("s");
        let names: Vec<String> = vars.iter().map(|v| printer.bind(*v)).collect();
        let extents = self.extents(vars);
        let mut ops = unflat(&names, &extents, &at);
        add(printer, &mut ops);
        vars.iter().zip(&names).for_each(|(var, name)| printer.unbind(*var, name));
        printer.namer.release(&at);
        let (total, step) = (extents.iter().product::<usize>(), self.threads / width);
        // Samples, steps and whatever else may be more together than any one tensor has elements.
        let ty = if total + step > i32::MAX as usize { "long long" } else { "int" };
        let head = format!("{ty} {at} = threadIdx.x / {width}; {at} < {total}; {at} += {step}");
        match total >= step * UNROLLED {
            true => Op::Unrolled { head, times: Some(UNROLLED), body: ops },
            false => Op::For { head, body: ops },
        }
    }
}

impl Places for Tiles<'_> {
    fn load(&self, tensor: usize, _: &[Expr], index: &[String]) -> Code {
        let name = &self.names[self.body.params[&tensor]];
        Code::atom(format!("{name}[{}]", flat(&self.body.program.tensors[tensor].shape, index)))
    }

    fn rows(&self, tensor: usize) -> String {
        super::rows_name(&self.names[self.body.params[&tensor]])
    }

    fn scalar(&self, scalar: usize) -> Code {
        let first = self.names.len() - self.body.program.scalars.len();
        Code::atom(scalar_value(&self.body.program, scalar, &self.names[first + scalar]))
    }
}
