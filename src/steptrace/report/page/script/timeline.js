// A step's lanes: a box says what it is when pointed at; a lane that has the focus goes from box to box by the arrow keys.
const boxTip = document.getElementById("tip");
for (const picture of document.querySelectorAll(".lanes")) {
  const readout = picture.querySelector(".readout");
  for (const lane of picture.querySelectorAll(".lane")) {
    const boxes = [...lane.querySelectorAll("g > rect")].map((rect) => ({ rect, text: rect.firstElementChild.textContent, at: parseFloat(rect.getAttribute("x")) }));
    boxes.sort((a, b) => a.at - b.at);
    for (const { rect } of boxes) rect.firstElementChild.remove(); // the browser's own tooltip would stand beside ours
    let current = -1;
    const hide = () => {
      boxes[current]?.rect.classList.remove("current");
      current = -1;
      boxTip.hidden = true;
    };
    const show = (number) => {
      hide();
      current = Math.max(0, Math.min(number, boxes.length - 1));
      const { rect, text } = boxes[current];
      rect.classList.add("current");
      boxTip.textContent = readout.textContent = text;
      boxTip.hidden = false;
      const place = rect.getBoundingClientRect();
      boxTip.style.left = `${Math.max(8, Math.min(place.left, innerWidth - boxTip.offsetWidth - 8))}px`;
      boxTip.style.top = `${place.bottom + boxTip.offsetHeight + 8 > innerHeight ? place.top - boxTip.offsetHeight - 6 : place.bottom + 6}px`;
    };
    lane.tabIndex = 0;
    lane.setAttribute("role", "group");
    lane.setAttribute("aria-label", `${lane.parentElement.firstElementChild.textContent}: ${boxes.length} boxes, left and right arrows go from one to the next`);
    lane.addEventListener("mouseover", (event) => {
      const number = boxes.findIndex(({ rect }) => rect === event.target);
      if (number >= 0) show(number);
    });
    lane.addEventListener("mouseleave", hide);
    lane.addEventListener("focus", () => { if (lane.matches(":focus-visible")) show(0); });
    lane.addEventListener("blur", hide);
    lane.addEventListener("keydown", (event) => {
      const number = { ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: boxes.length - 1 }[event.key];
      if (event.key === "Escape") hide();
      if (number === undefined) return;
      event.preventDefault();
      show(number);
    });
  }
}
