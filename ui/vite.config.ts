import { defineConfig } from "vite";

// Airflow provides React on globalThis and imports the built file, so React is not bundled.
export default defineConfig({
  publicDir: "public",
  define: { "process.env.NODE_ENV": '"production"' },
  build: {
    outDir: "../airflow_provider_chasqui/plugins/static",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    lib: {
      entry: "src/main.tsx",
      name: "ChasquiBundle",
      formats: ["iife"],
      fileName: () => "chasqui.js",
    },
    rollupOptions: {
      external: ["react", "react/jsx-runtime", "react-router-dom"],
      output: {
        globals: {
          react: "React",
          "react/jsx-runtime": "ReactJSXRuntime",
          "react-router-dom": "ReactRouterDOM",
        },
      },
    },
  },
});
