#[test]
fn print() {
    let a = unio_tests::compile_set("sp4").artefacts;
    for l in &a.program.as_ref().unwrap().train {
        println!("{:3?} {} {:?}", l.grid, l.name, l.after);
    }
    for k in &a.kernels {
        println!("{} {:?}", k.symbol, k.grid);
    }
    println!("{}", a.sources[0].text);
    for r in &a.resets {
        println!("{} {:?} {:?}", r.name, r.when, r.parts.len());
    }
}
