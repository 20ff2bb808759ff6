// TeX to MathML, as far as models write it: what this knows no command for stays the text that it
// was. Linear in the text, and no deeper than MAX_MATH_DEPTH.

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MAX_MATH_DEPTH = 40;
const DISPLAY_ENDS = { $$: "$$", "\\[": "\\]" };

function ml(tag, attributes, ...children) {
  const node = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  return fill(node, ...children);
}

const table = (text) => new Map(text.trim().split(/\s+/).map((pair) => pair.split("=")));

const LETTERS = table(`alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ
  vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ nu=ν xi=ξ omicron=ο pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ
  varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ
  Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω infty=∞ ell=ℓ hbar=ℏ imath=ı jmath=ȷ Re=ℜ Im=ℑ
  aleph=ℵ wp=℘ partial=∂ nabla=∇ emptyset=∅ varnothing=∅ top=⊤ bot=⊥ angle=∠ degree=° square=□
  triangle=△ dots=… ldots=… cdots=⋯ vdots=⋮ ddots=⋱ prime=′ checkmark=✓ blacksquare=■ Box=□ qed=∎`);
const OPERATORS = table(`times=× div=÷ cdot=⋅ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖
  otimes=⊗ odot=⊙ cap=∩ cup=∪ vee=∨ lor=∨ wedge=∧ land=∧ neg=¬ lnot=¬ setminus=∖ leq=≤ le=≤ geq=≥
  ge=≥ neq=≠ ne=≠ approx=≈ equiv=≡ sim=∼ simeq=≃ cong=≅ propto=∝ ll=≪ gg=≫ prec=≺ succ=≻ subset=⊂
  supset=⊃ subseteq=⊆ supseteq=⊇ subsetneq=⊊ in=∈ notin=∉ ni=∋ forall=∀ exists=∃ nexists=∄ mid=∣
  nmid=∤ parallel=∥ perp=⊥ vdash=⊢ models=⊨ to=→ rightarrow=→ leftarrow=← gets=← uparrow=↑
  downarrow=↓ leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺ implies=⟹ impliedby=⟸
  mapsto=↦ longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ longmapsto=⟼ hookrightarrow=↪
  rightharpoonup=⇀ rightleftharpoons=⇌ nearrow=↗ searrow=↘ therefore=∴ because=∵ colon=: lt=< gt=>
  asymp=≍ doteq=≐ triangleq=≜ coloneqq=≔ vert=| Vert=‖ lvert=| rvert=| lVert=‖ rVert=‖ langle=⟨
  rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lbrace={ rbrace=} lbrack=[ rbrack=] backslash=\\`);
const LARGE = table(`sum=∑ prod=∏ coprod=∐ int=∫ iint=∬ iiint=∭ oint=∮ bigcup=⋃ bigcap=⋂ bigoplus=⨁
  bigotimes=⨂ bigvee=⋁ bigwedge=⋀ bigsqcup=⨆`);
const FUNCTIONS = new Set(
  ("arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf limsup " +
    "ln log max min Pr sec sin sinh sup tan tanh argmax argmin").split(" "),
);
const UNDER = new Set("lim liminf limsup max min sup inf det gcd Pr argmax argmin".split(" "));
const SPACES = { ",": "0.17em", ":": "0.22em", ";": "0.28em", "!": "-0.17em", " ": "0.3em", quad: "1em", qquad: "2em", thinspace: "0.17em", enspace: "0.5em" };
const ACCENTS = table(`hat=^ widehat=^ bar=‾ overline=‾ vec=→ overrightarrow=→ tilde=~ widetilde=~ dot=˙
  ddot=¨ check=ˇ breve=˘ acute=´ grave=\` overbrace=⏞`);
const UNDERS = table("underline=_ underbrace=⏟");
const SIZES = /^(left|right|middle|[bB]igg?[lrm]?)$/;
const FENCES = {
  matrix: ["", ""],
  smallmatrix: ["", ""],
  pmatrix: ["(", ")"],
  bmatrix: ["[", "]"],
  Bmatrix: ["{", "}"],
  vmatrix: ["|", "|"],
  Vmatrix: ["‖", "‖"],
  cases: ["{", ""],
  array: ["", ""],
};
const ALIGNED = /^(align|aligned|alignat|split|eqnarray|gather|gathered|equation|multline)\*?$/;
// Letters of another kind: where A, a and 0 of it are, and which are elsewhere.
const KINDS = {
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce, {}],
  boldsymbol: [0x1d468, 0x1d482, 0x1d7ce, {}],
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }],
  mathcal: [0x1d49c, 0x1d4b6, 0, { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" }],
  mathfrak: [0x1d504, 0x1d51e, 0, { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" }],
};
KINDS.bm = KINDS.boldsymbol;
KINDS.bold = KINDS.mathbf;
KINDS.mathscr = KINDS.mathcal;
KINDS.Bbb = KINDS.mathbb;

function letterOf(kind, character) {
  const [upper, lower, digit, others] = KINDS[kind];
  if (others[character]) return others[character];
  const code = character.codePointAt(0);
  if (/[A-Z]/.test(character)) return String.fromCodePoint(upper + code - 65);
  if (/[a-z]/.test(character)) return String.fromCodePoint(lower + code - 97);
  return digit && /[0-9]/.test(character) ? String.fromCodePoint(digit + code - 48) : character;
}

class NoMath extends Error {}

// Commands, characters, numbers.
const texTokens = (text) =>
  text.match(/\\(?:[a-zA-Z]+\*?|[^a-zA-Z])|\d+(?:[.,]\d+)*|\s+|%[^\n]*|[\s\S]/gu) || [];

class TexReader {
  constructor(text, display) {
    this.tokens = texTokens(text);
    this.at = 0;
    this.depth = 0;
    this.display = display;
  }

  peek() {
    while (/^(\s|%)/.test(this.tokens[this.at] || "")) this.at += 1;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    if (token === undefined) throw new NoMath();
    this.at += 1;
    return token;
  }

  take(token) {
    if (this.peek() !== token) return false;
    this.at += 1;
    return true;
  }

  // Nodes up to one of `ends`, which stays.
  row(...ends) {
    this.depth += 1;
    if (this.depth > MAX_MATH_DEPTH) throw new NoMath();
    const nodes = [];
    while (this.peek() !== undefined && !ends.includes(this.peek())) {
      const node = this.withScripts(this.atom());
      if (node) nodes.push(node);
    }
    if (ends.length > 0 && this.peek() === undefined) throw new NoMath();
    this.depth -= 1;
    return nodes;
  }

  // { ... } or one token.
  argument() {
    this.depth += 1;
    if (this.depth > MAX_MATH_DEPTH) throw new NoMath();
    const node = this.oneArgument();
    this.depth -= 1;
    return node;
  }

  oneArgument() {
    if (this.take("{")) {
      const nodes = this.row("}");
      this.next();
      return nodes.length === 1 ? nodes[0] : ml("mrow", null, ...nodes);
    }
    const node = this.atom();
    if (!node) throw new NoMath();
    return node;
  }

  // The characters of { ... }, spaces too.
  plain() {
    if (!this.take("{")) return this.next();
    let text = "";
    for (let open = 1; ; ) {
      const token = this.tokens[this.at];
      if (token === undefined) throw new NoMath();
      this.at += 1;
      if (token === "{") open += 1;
      else if (token === "}" && --open === 0) return text;
      else if (token[0] !== "\\") text += token;
      else if (/^\\[ {}$%&#_,;]$/.test(token)) text += token[1] === "," || token[1] === ";" ? " " : token[1];
      else throw new NoMath();
    }
  }

  withScripts(base) {
    let below = null;
    let above = null;
    for (;;) {
      if (!below && this.take("_")) below = this.argument();
      else if (!above && this.take("^")) above = this.argument();
      else if (this.peek() === "'" && !above) {
        let marks = "";
        while (this.take("'")) marks += "′";
        above = ml("mo", null, marks);
        if (this.take("^")) above = ml("mrow", null, above, this.argument());
      } else if (this.peek() === "_" || this.peek() === "^") throw new NoMath();
      else if (this.peek() === "\\limits" || this.peek() === "\\nolimits") this.next();
      else break;
    }
    if (!below && !above) return base;
    const node = base || ml("mrow", null);
    const stacked = (node.hasLimits && this.display) || node.isStacked;
    const name = (stacked ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"])[
      below && above ? 2 : below ? 0 : 1
    ];
    return ml(name, null, node, below, above);
  }

  // A node; null for what shows nothing.
  atom() {
    const token = this.next();
    if (token === "{") {
      this.at -= 1;
      return this.argument();
    }
    if (token[0] === "\\" && token.length > 1) return this.command(token.slice(1));
    if (/^\d/.test(token)) return ml("mn", null, token);
    if (/^\p{L}$/u.test(token)) return ml("mi", null, token);
    if (token === "^" || token === "_" || token === "'") {
      this.at -= 1;
      return null; // scripts of nothing, as in {}^2
    }
    if (/^[}$#&\\]$/.test(token)) throw new NoMath();
    if (token === "~") return ml("mspace", { width: "0.3em" });
    const stretchy = /^[()[\]|]$/.test(token) ? { stretchy: "false" } : null;
    return ml("mo", stretchy, token === "-" ? "−" : token === "*" ? "∗" : token);
  }

  command(name) {
    if (LETTERS.has(name)) return ml("mi", null, LETTERS.get(name));
    if (OPERATORS.has(name)) {
      const text = OPERATORS.get(name);
      return ml("mo", /^[{}[\]|‖⟨⟩⌊⌋⌈⌉]$/.test(text) ? { stretchy: "false" } : null, text);
    }
    if (LARGE.has(name)) {
      const node = ml("mo", null, LARGE.get(name));
      node.hasLimits = !name.endsWith("int");
      return node;
    }
    if (FUNCTIONS.has(name)) return this.named(name.replace(/^arg(?=m)/, "arg "), UNDER.has(name));
    if (SPACES[name]) return ml("mspace", { width: SPACES[name] });
    if (/^[{}$%&#_]$/.test(name)) return ml(/[{}]/.test(name) ? "mo" : "mi", name === "{" || name === "}" ? { stretchy: "false" } : null, name);
    if (name === "|") return ml("mo", { stretchy: "false" }, "‖");
    if (SIZES.test(name)) return this.sized(name);
    if (ACCENTS.has(name) || UNDERS.has(name)) {
      const under = UNDERS.has(name);
      const mark = ml("mo", { stretchy: String(/^(wide|over|under)/.test(name)) }, (under ? UNDERS : ACCENTS).get(name));
      const node = ml(under ? "munder" : "mover", { [under ? "accentunder" : "accent"]: "true" }, this.argument(), mark);
      node.isStacked = name.endsWith("brace");
      return node;
    }
    if (KINDS[name]) {
      const letters = this.plain();
      return ml("mi", { mathvariant: "normal" }, ...[...letters].map((c) => letterOf(name, c)));
    }
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
      case "cfrac":
        return ml("mfrac", null, this.argument(), this.argument());
      case "binom":
      case "dbinom":
      case "tbinom":
        return ml("mrow", null, ml("mo", null, "("), ml("mfrac", { linethickness: "0" }, this.argument(), this.argument()), ml("mo", null, ")"));
      case "sqrt":
        if (this.take("[")) {
          const degree = ml("mrow", null, ...this.row("]"));
          this.next();
          return ml("mroot", null, this.argument(), degree);
        }
        return ml("msqrt", null, this.argument());
      case "text":
      case "textrm":
      case "textbf":
      case "textit":
      case "mbox":
      case "texttt":
        return ml("mtext", null, this.plain().replace(/ /g, "\u00a0"));
      case "mathrm":
      case "mathsf":
      case "mathtt":
      case "mathit":
      case "operatorname":
      case "operatorname*":
        return this.named(this.plain(), name.endsWith("*"));
      case "overset":
      case "stackrel":
      case "underset": {
        const mark = this.argument();
        return ml(name === "underset" ? "munder" : "mover", null, this.argument(), mark);
      }
      case "boxed":
      case "fbox":
        return ml("mrow", { class: "boxed" }, this.argument());
      case "pmod":
        return ml("mrow", null, ml("mspace", { width: "0.5em" }), ml("mo", { stretchy: "false" }, "("), this.named("mod", false), ml("mspace", { width: "0.3em" }), this.argument(), ml("mo", { stretchy: "false" }, ")"));
      case "bmod":
      case "mod":
        return ml("mo", { lspace: "0.3em", rspace: "0.3em" }, "mod");
      case "not": {
        const node = this.argument();
        if (node.childElementCount > 0) throw new NoMath();
        node.textContent += "\u0338";
        return node;
      }
      case "tag":
        return ml("mtext", null, "\u2003(" + this.plain() + ")");
      case "displaystyle":
      case "textstyle":
      case "scriptstyle":
      case "nonumber":
      case "notag":
      case "hline":
        return null;
      case "begin":
        return this.environment(this.plain());
      default:
        throw new NoMath();
    }
  }

  named(text, isStacked) {
    const node = ml("mi", { mathvariant: "normal" }, text);
    node.hasLimits = isStacked;
    return node;
  }

  // \left( a \right): fences that grow; \big(: a fence alone.
  delimiter() {
    const token = this.next();
    if (token === ".") return "";
    if (token === "\\|") return "‖";
    if (/^\\[{}]$/.test(token)) return token[1];
    const text = OPERATORS.get(token.slice(1)) || token;
    if (!/^[()[\]|/<>{}‖⟨⟩⌊⌋⌈⌉↑↓\\]$/.test(text)) throw new NoMath();
    return text;
  }

  sized(name) {
    const fence = this.delimiter();
    if (name !== "left") {
      if (name === "right") throw new NoMath();
      return ml("mo", { stretchy: "true", minsize: /igg/.test(name) ? "2em" : "1.4em" }, fence);
    }
    const nodes = this.row("\\right");
    this.next();
    return ml("mrow", null, ml("mo", { stretchy: "true", form: "prefix" }, fence), ...nodes, ml("mo", { stretchy: "true", form: "postfix" }, this.delimiter()));
  }

  environment(name) {
    const fences = FENCES[name] || (ALIGNED.test(name) ? ["", ""] : null);
    if (!fences) throw new NoMath();
    const end = () => {
      this.next();
      if (this.plain() !== name) throw new NoMath();
    };
    if (name === "array" || name.startsWith("alignat")) this.plain();
    const rows = [[]];
    for (;;) {
      rows[rows.length - 1].push(this.row("&", "\\\\", "\\end"));
      const token = this.peek();
      if (token === "\\end") break;
      this.next();
      if (token !== "\\\\") continue;
      if (this.take("[")) while (this.next() !== "]");
      rows.push([]);
    }
    end();
    if (rows.length > 1 && rows[rows.length - 1].every((cell) => cell.length === 0)) rows.pop();
    const kind = ALIGNED.test(name) ? "aligned" : name === "cases" ? "cases" : "matrix";
    const grid = ml(
      "mtable",
      { class: kind, ...(kind === "aligned" ? { displaystyle: "true" } : null) },
      ...rows.map((row) => ml("mtr", null, ...row.map((cell) => ml("mtd", null, ...cell)))),
    );
    if (!fences[0] && !fences[1]) return grid;
    const fence = (text, form) => text && ml("mo", { stretchy: "true", form }, text);
    return ml("mrow", null, fence(fences[0], "prefix"), grid, fence(fences[1], "postfix"));
  }
}

// The element of a formula, whose source is its title; null: it is none that we know to show.
function mathElement(tex, display) {
  try {
    const reader = new TexReader(tex, display);
    const nodes = reader.row();
    if (nodes.length === 0 || reader.peek() !== undefined) return null;
    return ml("math", { display: display ? "block" : "inline", title: tex.trim() }, ml("mrow", null, ...nodes));
  } catch (error) {
    if (error instanceof NoMath) return null;
    throw error;
  }
}

// The formula at `at` of a line of text: [nodes, end], or null. What cannot be shown is text as it
// is, so that no mark in it is taken for markdown's.
function mathAt(text, at) {
  const window = text.slice(at, at + MAX_SPAN);
  const match =
    /^\$\$([^$]+)\$\$/.exec(window) ||
    /^\\\[((?:[^\\]|\\[^\]])+?)\\\]/.exec(window) ||
    /^\\\(((?:[^\\]|\\[^)])+?)\\\)/.exec(window) ||
    (/[\w$\\]/.test(text[at - 1] || " ")
      ? null
      : /^\$(?![\s$])((?:[^$\\\n]|\\[^\n])*?(?:[^$\\\s]|\\[^\s]))\$(?![\w$])/.exec(window));
  if (!match) return null;
  const display = window.startsWith("$$") || window.startsWith("\\[");
  // Words between two prices are no formula.
  const isPrice = window[0] === "$" && !display && /\s/.test(match[1]) && /[a-zA-Z]{2}/.test(match[1]);
  if (isPrice && !/[\\^_{=]/.test(match[1])) return null;
  const node = mathElement(match[1], display);
  if (node) return [node, at + match[0].length];
  const isTex = display || window[0] === "\\" || /\\[a-zA-Z]/.test(match[1]);
  return !isTex ? null : [document.createTextNode(match[0]), at + match[0].length];
}

// A block of lines between $$ or \[ and its end.
function mathBlock(text) {
  const source = text.trim();
  const begin = Object.keys(DISPLAY_ENDS).find((mark) => source.startsWith(mark));
  const end = DISPLAY_ENDS[begin];
  const isWhole = source.length > begin.length + end.length && source.endsWith(end);
  const node = isWhole ? mathElement(source.slice(begin.length, -end.length), true) : null;
  return node ? el("div.scroll", null, node) : el("p", null, ...plainText(text));
}
