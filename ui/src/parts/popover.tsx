// A button that opens a body below it. If a user clicks an element without focus, such as a label's text, the body takes the focus.
// Otherwise an ancestor would take the focus, and the popover would close.
// Closes on Escape, on a click elsewhere and when the focus leaves it.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

interface Props {
  label: string;
  button: ComponentChildren;
  buttonClass?: string;
  align?: "left" | "right";
  children: (close: () => void) => ComponentChildren;
}

export function Popover({ label, button, buttonClass = "button", align = "left", children }: Props) {
  const [open, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  const opener = useRef<HTMLButtonElement>(null);
  const close = () => {
    setOpen(false);
    opener.current?.focus();
  };
  useEffect(() => {
    if (!open) return undefined;
    const outside = (e: Event) => {
      if (!root.current?.contains(e.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", outside);
    document.addEventListener("focusin", outside);
    return () => {
      document.removeEventListener("pointerdown", outside);
      document.removeEventListener("focusin", outside);
    };
  }, [open]);
  return (
    <div class="popover" ref={root} onKeyDown={(e) => { if (open && e.key === "Escape") { e.stopPropagation(); close(); } }}>
      <button type="button" class={buttonClass} aria-haspopup="dialog" aria-expanded={open} title={label}
        ref={opener} onClick={() => setOpen(!open)}><span class="unseen">{label} </span>{button}</button>
      {open && <div class={`popover-body ${align}`} role="dialog" aria-label={label} tabIndex={-1}>{children(close)}</div>}
    </div>
  );
}
