// Last, when everything has its place: on a wide screen what is behind each thing to do is shown, as far as all of them stay in sight; of a single one always.
const todo = matchMedia("(min-width: 761px)").matches ? [...document.querySelector("main .first")?.querySelectorAll("details") ?? []] : [];
for (const item of todo) {
  item.open = true;
  if (todo.length === 1 || todo.at(-1).getBoundingClientRect().bottom + scrollY <= innerHeight) continue;
  item.open = false;
  break; // what comes first matters most
}
