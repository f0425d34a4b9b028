// Starts the language server and gives it the two things that LSP does not carry: the key, kept in
// the editor's secret storage, and the user's explicit no.

import * as vscode from "vscode";
import { LanguageClient, type ServerOptions } from "vscode-languageclient/node";

const SECRET = "tendril.apiKey";
let client: LanguageClient | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const key = (await context.secrets.get(SECRET)) ?? (await askForKey(context));
  if (key === undefined) return;
  const settings = vscode.workspace.getConfiguration("tendril");
  const outbox = vscode.Uri.joinPath(context.globalStorageUri, "outbox.db");
  await vscode.workspace.fs.createDirectory(context.globalStorageUri);
  const server: ServerOptions = {
    command: settings.get("python", "python3"),
    args: [
      "-m",
      "tendril_editor",
      `--base-url=${settings.get("baseUrl", "")}`,
      `--model=${settings.get("model", "tendril")}`,
      `--outbox=${outbox.fsPath}`,
    ],
    options: { env: { ...process.env, TENDRIL_API_KEY: key } },
  };
  const documentSelector = [{ scheme: "file" }, { scheme: "untitled" }];
  client = new LanguageClient("tendril", "Tendril", server, { documentSelector });
  context.subscriptions.push(vscode.commands.registerCommand("tendril.dismiss", dismiss));
  await client.start();
}

/** The server sends what is pending before it answers; a file keeps the rest. */
export async function deactivate(): Promise<void> {
  await client?.stop();
}

async function dismiss(): Promise<void> {
  await vscode.commands.executeCommand("editor.action.inlineSuggest.hide");
  const uri = vscode.window.activeTextEditor?.document.uri.toString();
  if (uri !== undefined) await vscode.commands.executeCommand("tendril.reject", uri);
}

async function askForKey(context: vscode.ExtensionContext): Promise<string | undefined> {
  const key = await vscode.window.showInputBox({
    prompt: "Tendril application key",
    password: true,
    ignoreFocusOut: true,
  });
  if (key !== undefined) await context.secrets.store(SECRET, key);
  return key;
}
