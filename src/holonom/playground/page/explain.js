// One sentence and one equation for every word on the page.

const T = (sentence, equation) => ({ sentence, equation });

export const TERMS = {
  // data and network
  data: T("How points of two classes lie in the plane; 1,000 more points, drawn the same way, measure the test loss; of painted points every fourth is held out as a test.", "(<i>x</i>, <i>y</i>), <i>x</i> ∈ ℝ², <i>y</i> ∈ {0, 1}"),
  turns: T("How often the two arms of the spiral wind around the centre.", "<i>x</i> = √<i>t</i> (cos 2π<i>b</i>√<i>t</i>, sin 2π<i>b</i>√<i>t</i>), <i>t</i> ∼ U(0, 1)"),
  waves: T("Half waves of the two curves; they cross about as often.", "<i>x</i>₂ = cos <i>b</i>π<i>t</i> against sin <i>b</i>π<i>t</i>"),
  noise: T("Every point is moved by this much at random.", "<i>x</i> + <i>c</i> N(0, <i>I</i>)"),
  scale: T("Stretches the plane: a network starts with slopes of about 1, so it learns a wider plane sooner.", "<i>x</i> ↦ <i>a x</i>"),
  points: T("How many points there are to learn from; a wide network overfits a few.", "<i>N</i>"),
  depth: T("Layers of hidden units between the plane and the output.", "<i>f</i> = <i>W<sub>p</sub></i> σ(<i>W</i><sub><i>p</i>−1</sub> … σ(<i>W</i><sub>0</sub> <i>x</i> + <i>b</i><sub>0</sub>) …) + <i>b<sub>p</sub></i>"),
  width: T("Units in every hidden layer.", "<i>W</i> ∈ ℝ<sup>width × width</sup>"),
  activation: T("The function between two layers.", "ReLU: max(0, <i>z</i>)"),
  start: T("PyTorch's own, or near zero: there the loss is nearly flat, and training must leave this plateau.", "U(−1/√<i>n</i>, 1/√<i>n</i>), or 0.01 N(0, 1)"),
  replicas: T("One run, or 16 that differ in initial weights and noise and see the same batches; the first of them is the one run.", "<i>p̄</i> = (1/16) Σ<sub><i>r</i></sub> <i>p<sub>r</sub></i>(<i>x</i>)"),
  batch: T("Points that a step's gradient is taken from; small batches make it noisy, which heats the weights; it acts at once.", "∇<i>L</i> ≈ (1/<i>n</i>) Σ ∇ℓ(<i>x<sub>i</sub></i>, <i>y<sub>i</sub></i>)"),
  seed: T("Decides points, initial weights, batches and noise; both arms have the same.", "<i>R</i> = Philox(seed, step, weight)"),
  speed: T("Steps per second, or as many as this machine takes.", "steps/s"),

  // settings of a method
  method: T("The dynamics that this arm trains by.", "d<i>q</i> = <i>p</i> d<i>t</i>, d<i>p</i> = (−∇<i>L</i> − γ<i>p</i>) d<i>t</i> + √(2γτ) d<i>W</i>"),
  scheme: T("The letters act in this order, each for its share of the step: A drift, B kick, O friction and noise, C D E the adaptive thermostat, L a whole overdamped step.", "BAOAB: <i>e</i><sup><i>hB</i>/2</sup> <i>e</i><sup><i>hA</i>/2</sup> <i>e</i><sup><i>hO</i></sup> <i>e</i><sup><i>hA</i>/2</sup> <i>e</i><sup><i>hB</i>/2</sup>"),
  space: T("Where the weights live: free, every weight on a circle, every row on a sphere, or orthogonal between hidden layers.", "<i>g</i>(<i>q</i>) = 0"),
  every: T("Weights before the output layer get a gradient only once in so many steps and drift in between.", "θ ← θ − <i>h p</i> at every step, <i>p</i> ← μ<i>p</i> + ∇<i>L</i> at every <i>k</i>-th"),
  lr: T("The time step; with momentum a step moves a weight by about its square.", "<i>h</i>"),
  momentum: T("How much of the last step's velocity is kept.", "<i>p</i> ← μ<i>p</i> + ∇<i>L</i>"),
  weight_decay: T("Pulls every weight towards zero.", "<i>L</i> + ½λ‖<i>q</i>‖²"),
  friction: T("How fast momenta forget; at infinity they are drawn anew at every step.", "<i>p</i> ← <i>e</i><sup>−γ<i>h</i></sup><i>p</i> + √(τ(1 − <i>e</i><sup>−2γ<i>h</i></sup>)) <i>R</i>"),
  temperature: T("How much noise there is: weights are found with this probability; 0 is training without noise.", "π(<i>q</i>) ∝ <i>e</i><sup>−<i>L</i>(<i>q</i>)/τ</sup>"),
  output_temperature: T("The temperature of the output layer, which has a dynamics of its own.", "τ₂"),
  radius: T("No weight (or row) of the layers before the last can be longer than this.", "θ² + ξ² = <i>r</i>²"),
  output_radius: T("The same for the output layer.", "|θ| ≤ <i>r</i>₁"),
  coupling: T("How strongly the thermostat reacts when momenta are too hot or too cold; derived from the number of weights unless it is given.", "dξ = ε(<i>p</i>ᵀ<i>p</i> − <i>N</i>τ) d<i>t</i>"),
  driving_noise: T("Noise that the thermostat adds besides that of the batches; derived unless it is given.", "d<i>p</i> = −ξ<i>p</i> d<i>t</i> + σ<sub>A</sub> d<i>W</i>"),

  // numbers
  test_accuracy: T("The share of 1,000 new points (or of the painted ones held out) that lie on their side of the boundary.", "⟨(<i>f</i>(<i>x</i>) > 0) = <i>y</i>⟩"),
  train_accuracy: T("The share of the points learnt from that lie on their side of the boundary.", "⟨(<i>f</i>(<i>x</i>) > 0) = <i>y</i>⟩"),
  test_loss: T("The mean cross-entropy of new points; it rises when a network is surely wrong.", "−⟨<i>y</i> log <i>p</i> + (1 − <i>y</i>) log(1 − <i>p</i>)⟩"),
  train_loss: T("The mean cross-entropy of the points learnt from: what is being minimised.", "<i>L</i> = −⟨<i>y</i> log <i>p</i> + (1 − <i>y</i>) log(1 − <i>p</i>)⟩"),
  residual: T("How far the weights are off their constraint, at most; rounding leaves about 1e-7.", "max |θ² + ξ² − <i>r</i>²|/<i>r</i>², max |<i>Q</i>ᵀ<i>Q</i> − <i>I</i>|"),
  curvature: T("How strongly the boundary bends, on average along it; a boundary that runs after single points bends more.", "κ = |φ<sub>xx</sub>φ<sub>y</sub>² − 2φ<sub>x</sub>φ<sub>y</sub>φ<sub>xy</sub> + φ<sub>yy</sub>φ<sub>x</sub>²| / |∇φ|³"),

  // pictures
  field: T("What the network says of every place: blue for class 1, orange for class 0; the line is where both are as likely; points have the colour of their own class.", "<i>p</i>(<i>x</i>) = 1/(1 + <i>e</i><sup>−<i>f</i>(<i>x</i>)</sup>)"),
  spread: T("The standard deviation of the replicas' probabilities: how much they disagree. The line is where their mean is one half.", "(⟨(<i>p<sub>r</sub></i> − <i>p̄</i>)²⟩)<sup>½</sup> ≤ ½"),
  loss: T("Test loss (solid) and training loss (dashed); of replicas the mean.", "<i>L</i> = −⟨<i>y</i> log <i>p</i> + (1 − <i>y</i>) log(1 − <i>p</i>)⟩"),
  accuracy: T("Test accuracy (solid) and training accuracy (dashed).", "⟨(<i>f</i>(<i>x</i>) > 0) = <i>y</i>⟩"),
  temperatures: T("In equilibrium momenta and positions of every layer are at the temperature that was set (the bar); noise of small batches lifts both, and the positions' is an average since the last change, low while a layer still learns and left out where it is negative.", "kinetic <i>p</i>ᵀ<i>p</i>/<i>N</i> &nbsp;·&nbsp; configurational ⟨(<i>q</i> − ⟨<i>q</i>⟩)·∇<i>L</i>⟩/<i>N</i>"),
  weights: T("Every weight on its circle; every row on its sphere, seen from above, as far out as it is long; of free and orthogonal weights the singular values, which are 1 where a weight is orthogonal.", "θ = <i>r</i> sin φ &nbsp;·&nbsp; ‖<i>w</i>‖² + ξ² = <i>r</i>² &nbsp;·&nbsp; <i>Q</i>ᵀ<i>Q</i> = <i>I</i>"),
  residuals: T("The constraint's largest violation along the run, on a logarithmic axis.", "max |<i>g</i>(<i>q</i>)|"),
  curvatures: T("The mean curvature of the boundary along the run.", "⟨|κ|⟩"),
  line: T("The training loss on the straight line from the initial weights (0) to the present ones (1), and a quarter beyond.", "<i>L</i>((1 − α) θ<sub>start</sub> + α θ<sub>now</sub>)"),

  // methods
  sgd: T("Stochastic gradient descent, with or without momentum.", "<i>p</i> ← μ<i>p</i> + ∇<i>L</i>, θ ← θ − <i>h p</i>"),
  adam: T("Gradient descent in units of each weight's recent gradients.", "θ ← θ − <i>h m̂</i>/(√<i>v̂</i> + ε)"),
  sgld: T("Gradient descent with noise that samples e^(−L/τ).", "θ ← θ − <i>h</i>∇<i>L</i> + √(2τ<i>h</i>) <i>R</i>"),
  baoab: T("Langevin dynamics: weights with momentum, friction and noise.", "d<i>p</i> = (−∇<i>L</i> − γ<i>p</i>) d<i>t</i> + √(2γτ) d<i>W</i>"),
  adl: T("A friction that adapts until momenta have the temperature, whatever the noise of the batches.", "dξ = ε(<i>p</i>ᵀ<i>p</i> − <i>N</i>τ) d<i>t</i>"),
  c_od: T("SGLD with every weight on a circle, so that no weight outgrows its radius.", "θ² + ξ² = <i>r</i>²"),
  c_ud: T("Langevin dynamics with every weight on a circle.", "θ² + ξ² = <i>r</i>²"),
  s_od: T("SGLD with every row of weights inside a sphere.", "‖<i>w</i>‖² + ξ² = <i>r</i>²"),
  s_ud: T("Langevin dynamics with every row of weights inside a sphere.", "‖<i>w</i>‖² + ξ² = <i>r</i>²"),
  o_od: T("Gradient descent that keeps the weights between hidden layers orthogonal.", "<i>Q</i>ᵀ<i>Q</i> = <i>I</i>"),
  o_ud: T("Langevin dynamics that keeps the weights between hidden layers orthogonal.", "<i>Q</i>ᵀ<i>Q</i> = <i>I</i>"),
  lol: T("Langevin dynamics in the body, infinite friction in the output layer.", "γ₁ finite, γ₂ → ∞"),
  adlala: T("An adaptive thermostat in the body, Langevin dynamics in the output layer.", "dξ = ε(<i>p</i>₁ᵀ<i>p</i>₁ − <i>N</i>τ₁) d<i>t</i>"),
  multirate: T("The output layer takes a gradient at every step, the rest at every k-th.", "<i>p</i>₁ ← μ<i>p</i>₁ + ∇₁<i>L</i> at every <i>k</i>-th step"),
  word: T("Any legal word over A B O C D E F, or L, in any space; M where weights are free.", "<i>e</i><sup><i>hL</i></sup> ≈ ∏ <i>e</i><sup><i>h</i> letter</sup>"),
};

/** The explanation as plain text, for screen readers. */
export function plain(term) {
  const box = document.createElement("div");
  const { sentence, equation } = TERMS[term];
  box.innerHTML = equation;
  return `${sentence} ${box.textContent}`.trim();
}

const EXPLAINED = "button.term, select, input:not(.exact)"; // what is explained when the keyboard comes to it

/** Shows the explanation of whatever has `data-term`: on hover, on keyboard focus and on a tap; Escape hides it. */
export function explain(tip) {
  let shown = null, at = null; // what is explained, and where it was then
  const focusOf = (element) => element?.control ?? element; // a label's is its control
  const hide = () => {
    tip.hidden = true;
    shown?.removeAttribute("aria-describedby");
    shown = null;
  };
  const show = (element) => {
    if (shown === element) return;
    hide();
    const { sentence, equation } = TERMS[element.dataset.term];
    const paragraph = document.createElement("p");
    paragraph.textContent = sentence;
    tip.replaceChildren(paragraph);
    const line = document.createElement("p");
    line.className = "equation";
    line.innerHTML = equation;
    tip.append(line);
    tip.hidden = false;
    shown = element;
    element.setAttribute("aria-describedby", "tip");
    at = element.getBoundingClientRect();
    const place = (element.closest(".control, .pair") ?? element).getBoundingClientRect(); // nothing of it is covered
    const size = tip.getBoundingClientRect();
    const below = place.bottom + 8 + size.height < innerHeight;
    tip.style.left = `${Math.max(8, Math.min(place.left, document.documentElement.clientWidth - size.width - 8))}px`;
    tip.style.top = `${Math.max(8, below ? place.bottom + 8 : place.top - size.height - 8)}px`;
  };
  const term = (event) => event.target.closest?.("[data-term]");
  document.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch") return;
    const found = term(event);
    if (found) show(found);
    else if (!focusOf(shown)?.matches(":focus-visible")) hide();
  });
  document.addEventListener("focusin", ({ target }) => {
    const found = target.dataset.term ? target : target.labels?.[0]?.closest("[data-term]");
    if (found && target.matches(EXPLAINED) && target.matches(":focus-visible")) show(found);
    else if (target !== focusOf(shown)) hide(); // a click on a label also moves the focus to its control
  });
  document.addEventListener("click", (event) => {
    const found = term(event);
    if (found) show(found);
    else if (event.target !== focusOf(shown)) hide(); // a label passes its click on to its control
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
  // Browsers report a scroll late: one that ended before the explanation was shown does not hide it.
  addEventListener("scroll", () => {
    const place = shown?.getBoundingClientRect();
    if (place && (place.left !== at.left || place.top !== at.top)) hide();
  }, { passive: true });
}
